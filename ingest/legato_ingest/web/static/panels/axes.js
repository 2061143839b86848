// Axes: the range and the ticks of values in a unit, and the ticks of time in the browser's time zone.
//
// Ticks are at round values of the unit: 30 s, 5 mins, 2 GB. This module only computes; plot.js puts the results into a figure.

import { formatNumber, secondsPerUnit, two } from './units.js';

const ROUND = [1, 2, 2.5, 5, 10];
const ROUND_SECONDS = [10, 15, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const CLOCK_STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND, 30 * SECOND,
  MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
];
const HOUR_STEPS = [1, 2, 3, 6, 12];
const DAY_STEPS = [1, 2, 4, 7, 14, 28, 91, 182, 364];
// Values of which the spread is a smaller part of their size differ by rounding only. Ticks between them would be the same number.
const SPREAD_MIN = 1e-9;
// Beyond these, a range or a step would be infinite or 0.
const [SIZE_MIN, SIZE_MAX] = [1e-290, 1e300];
const TICKS_MAX = 20;

function roundStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return ROUND.find((factor) => factor * power >= rough * 0.999) * power;
}

function valueStep(rough, unit) {
  const perUnit = secondsPerUnit(unit);
  if (perUnit && rough * perUnit > ROUND_SECONDS[0] / 2) {
    const seconds = ROUND_SECONDS.find((one) => one >= rough * perUnit);
    if (seconds) return seconds / perUnit;
  }
  if ((unit === 'bytes' || unit === 'bits') && rough >= 1) return 2 ** Math.ceil(Math.log2(rough));
  return roundStep(rough);
}

function clamped(value) {
  return Math.abs(value) < SIZE_MIN ? 0 : Math.max(-SIZE_MAX, Math.min(SIZE_MAX, value));
}

function isSpread(low, high) {
  return high - low > SPREAD_MIN * Math.max(Math.abs(low), Math.abs(high));
}

/** Return [low, high] of the values with 0, unless all values are far from 0. `fromZero`: always with 0. */
function widened(low, high, fromZero) {
  if (!isSpread(low, high)) return low === 0 ? [0, 1] : [Math.min(0, low), Math.max(0, high)];
  const apart = low > 0.75 * high && low > 0;
  const apartBelow = high < 0.75 * low && high < 0;
  if (fromZero || !(apart || apartBelow)) return [Math.min(0, low), Math.max(0, high)];
  const space = 0.1 * (high - low);
  return [low - space, high + space];
}

/**
 * Return {range, ticks, texts} of an axis of values.
 *
 * `extent`: [low, high] of the data; `pixels`: the length of the axis; `limits`: a fixed {min, max} of the field's settings.
 */
export function valueAxis(extent, unit, pixels, { fromZero = false, limits = {} } = {}) {
  let [low, high] = widened(clamped(extent[0]), clamped(extent[1]), fromZero);
  [low, high] = [limits.min ?? low, limits.max ?? high];
  if (!isSpread(low, high)) high = low + Math.max(1, 1e-6 * Math.abs(low));
  let step = valueStep((high - low) / Math.max(2, Math.min(6, Math.floor(pixels / 38))), unit);
  if (unit === 'short' && Number.isInteger(extent[0]) && Number.isInteger(extent[1])) step = Math.max(1, step);
  const bottom = limits.min ?? Math.floor(low / step + 1e-9) * step;
  const top = limits.max ?? roomAbove(high, step);
  const ticks = valueTicks(bottom, top, step);
  return { range: [bottom, top], ticks, texts: tickTexts(ticks, unit) };
}

/** Return the multiples of the step from `bottom` to `top`. */
function valueTicks(bottom, top, step) {
  const first = Math.ceil(bottom / step - 1e-9);
  const count = Math.min(TICKS_MAX, Math.floor(top / step + 1e-6) - first + 1);
  return Array.from({ length: Math.max(0, count) }, (_, at) => (first + at) * step);
}

/** Return the upper end: a tick, or a little above the greatest value if that leaves less empty space. */
function roomAbove(high, step) {
  const tick = Math.ceil(high / step - 1e-9) * step;
  return tick - high > 0.6 * step ? high + 0.15 * step : tick;
}

function tickTexts(ticks, unit) {
  return ticks.map((value) => formatNumber(Number(value.toPrecision(12)), unit, { trim: true }));
}

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

function clockTicks(from, to, step) {
  const shift = new Date(from).getTimezoneOffset() * MINUTE;
  const ticks = [];
  for (let time = Math.ceil((from - shift) / step) * step + shift; time <= to; time += step) ticks.push(time);
  return ticks;
}

/** Ticks at full hours or days of the calendar, also where the clocks change. */
function calendarTicks(from, to, hours, days) {
  const first = new Date(from);
  const [year, month, day] = [first.getFullYear(), first.getMonth(), first.getDate()];
  const at = (count) => new Date(year, month, day + count * days, count * hours).getTime();
  const ticks = [];
  for (let count = 0; at(count) <= to; count += 1) if (at(count) >= from) ticks.push(at(count));
  return ticks;
}

function timeTicks(from, to, rough) {
  const clock = CLOCK_STEPS.find((step) => step >= rough);
  if (clock) return [clockTicks(from, to, clock), clock];
  const hours = HOUR_STEPS.find((step) => step * HOUR >= rough);
  if (hours) return [calendarTicks(from, to, hours, 0), hours * HOUR];
  const days = DAY_STEPS.find((step) => step * DAY >= rough) ?? 364;
  return [calendarTicks(from, to, 0, days), days * DAY];
}

function timeText(time, step) {
  const date = new Date(time);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  const midnight = clock === '00:00' && date.getSeconds() === 0 && date.getMilliseconds() === 0;
  if (step >= DAY || (midnight && step >= MINUTE)) return `${MONTHS[date.getMonth()]} ${date.getDate()}`;
  if (step >= MINUTE) return clock;
  const seconds = `${clock}:${two(date.getSeconds())}`;
  return step >= SECOND ? seconds : `${seconds}.${String(date.getMilliseconds()).padStart(3, '0')}`;
}

/** Return {range, ticks, texts} of a time axis over exactly this span. */
export function timeAxis(from, to, pixels) {
  const width = to - from < 20 * SECOND ? 95 : 70;
  const [ticks, step] = timeTicks(from, to, (to - from) / Math.max(1, pixels / width));
  // A text at the very end would touch those of the other axes.
  const edge = ((to - from) / Math.max(1, pixels)) * 16;
  const texts = ticks.map((time) => (time - from < edge || to - time < edge ? '' : timeText(time, step)));
  return { range: [from, to], ticks, texts };
}

/** Return the ticks of an axis of categories at 0, 1, 2 …: as many of the names as have room. */
export function categoryAxis(names, pixels) {
  const widest = Math.max(1, ...names.map((name) => name.length)) * 7 + 14;
  const every = Math.max(1, Math.ceil((names.length * widest) / Math.max(1, pixels)));
  const ticks = names.map((_, at) => at).filter((at) => at % every === 0);
  return { range: [-0.5, names.length - 0.5], ticks, texts: ticks.map((at) => names[at]) };
}
