// Numbers as text: the units of Grafana that Legato's dashboards use, with Grafana's scaling and number of decimals.
//
// A unit that is not in the table is written after the number, or, for Grafana's forms "suffix:x" and "prefix:x", as the form
// says. Dates are formatted in the browser's time zone. This module knows no thresholds and no mappings.

// From this part of a larger unit on, three digits round up to it: 999.6 ms is 1.00 s.
const ROUNDS_UP = 0.9995;

/** Return the decimals for three significant digits; none for whole numbers. */
export function autoDecimals(value) {
  if (!Number.isFinite(value) || value === 0 || Number.isInteger(value)) return 0;
  return Math.min(20, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(value)))));
}

/** Return a number with decimals. `trim`: without zeros at the end. Thousands have commas. */
function fixed(value, options) {
  const decimals = options.decimals ?? autoDecimals(value);
  let text = Math.abs(value) >= 1e21 ? String(value) : value.toFixed(Math.min(20, decimals));
  if (options.trim && text.includes('.')) text = text.replace(/\.?0+$/, '');
  return group(text === '-0' ? '0' : text);
}

function group(text) {
  const [whole, rest] = text.split('.');
  if (whole.includes('e')) return text;
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ',');
  return rest === undefined ? grouped : `${grouped}.${rest}`;
}

/** Return the digits of a whole number as `formatNumber` shows them, also where they are too many for a number. */
export const formatExact = (digits) => group(digits);

/** A unit with prefixes: each one is `factor` times the one before it. */
function scaled(factor, suffixes, first = 0) {
  return (value, options) => {
    let step = 0;
    let rest = value;
    while (Math.abs(rest) >= factor * ROUNDS_UP && first + step < suffixes.length - 1) [rest, step] = [rest / factor, step + 1];
    while (first > 0 && rest !== 0 && Math.abs(rest) < 1 && first + step > 0) [rest, step] = [rest * factor, step - 1];
    return fixed(rest, options) + suffixes[first + step];
  };
}

const si = (unit) => scaled(1000, ['n', 'µ', 'm', '', 'k', 'M', 'G', 'T', 'P'].map((prefix) => ` ${prefix}${unit}`), 3);
const largeSi = (unit) => scaled(1000, ['', 'k', 'M', 'G', 'T', 'P', 'E'].map((prefix) => ` ${prefix}${unit}`));
const iec = (unit) => scaled(1024, ['', 'Ki', 'Mi', 'Gi', 'Ti', 'Pi', 'Ei'].map((prefix) => ` ${prefix}${unit}`));
const counts = (unit) => scaled(1000, ['', ' K', ' Mil', ' Bil', ' Tri', ' Quadr'].map((prefix) => prefix + unit));

// From which size on (in seconds) a duration has which unit.
const DURATIONS = [
  [31536000, ' years'], [604800, ' weeks'], [86400, ' days'], [3600, ' hours'], [60, ' mins'],
  [1, ' s'], [1e-3, ' ms'], [1e-6, ' µs'], [1e-9, ' ns'],
];

function duration(secondsPerUnit) {
  return (value, options) => {
    const seconds = value * secondsPerUnit;
    if (seconds === 0) return `0${DURATIONS.find(([size]) => size <= secondsPerUnit * 1.0001)[1]}`;
    const isAtLeast = (size) => Math.abs(seconds) >= size * (size > 1 ? 1 - 1e-9 : ROUNDS_UP);
    const [size, suffix] = DURATIONS.find(([least]) => isAtLeast(least)) || DURATIONS.at(-1);
    const number = fixed(Number((seconds / size).toPrecision(12)), options);
    return number + (number === '1' && size >= 60 ? suffix.slice(0, -1) : suffix);
  };
}

function currency(symbol) {
  const write = scaled(1000, ['', 'K', 'M', 'B', 'T']);
  return (value, options) => (value < 0 ? '-' : '') + symbol + write(Math.abs(value), options);
}

/** A share of 1 as a percentage. It is never 100 % for less than all: the budget of 99.95 % is spent between 99.9 and 100. */
function share(value, options) {
  const text = fixed(Number((value * 100).toPrecision(12)), options);
  const isRoundedUp = value < 1 && Number(text) === 100;
  return `${isRoundedUp ? Math.min(value * 100, 99.99).toFixed(2) : text}%`;
}

const after = (suffix) => (value, options) => fixed(value, options) + suffix;

const UNITS = {
  none: after(''),
  short: counts(''),
  sishort: si(''),
  percent: after('%'),
  percentunit: share,
  s: duration(1),
  ms: duration(1e-3),
  µs: duration(1e-6),
  ns: duration(1e-9),
  m: duration(60),
  h: duration(3600),
  d: duration(86400),
  bytes: iec('B'),
  decbytes: largeSi('B'),
  bits: iec('b'),
  decbits: largeSi('b'),
  Bps: largeSi('B/s'),
  binBps: iec('B/s'),
  bps: largeSi('b/s'),
  hertz: largeSi('Hz'),
  watt: largeSi('W'),
  celsius: after(' °C'),
  currencyUSD: currency('$'),
  currencyEUR: currency('€'),
  reqps: counts(' req/s'),
  cps: counts(' c/s'),
  ops: counts(' ops/s'),
  rps: counts(' rd/s'),
  wps: counts(' wr/s'),
};

/** Return a number as text in a unit. `options`: {decimals, trim}; trim removes zeros at the end, for the ticks of an axis. */
export function formatNumber(value, unit, options = {}) {
  if (Number.isNaN(value)) return 'NaN';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '-∞';
  const write = Object.hasOwn(UNITS, unit || 'none') ? UNITS[unit || 'none'] : null;
  return write ? write(value, options) : unknownUnit(value, unit, options);
}

function unknownUnit(value, unit, options) {
  const number = fixed(value, options);
  if (unit === 'string') return String(value);
  if (unit.startsWith('suffix:')) return number + unit.slice(7);
  if (unit.startsWith('prefix:')) return unit.slice(7) + number;
  return `${number} ${unit}`;
}

/** Whether the unit's larger steps are 60 and 3,600 and so on. */
export function secondsPerUnit(unit) {
  return { s: 1, ms: 1e-3, µs: 1e-6, ns: 1e-9, m: 60, h: 3600, d: 86400 }[unit] ?? null;
}

/** Return a number with at least two digits. */
export const two = (number) => String(number).padStart(2, '0');

/** Return a time in the browser's time zone: 2026-11-23 09:18:53, with milliseconds if there are any. */
export function formatTime(ms, { dateOnly = false } = {}) {
  const time = new Date(ms);
  if (Number.isNaN(time.getTime())) return String(ms);
  if (dateOnly) return time.toISOString().slice(0, 10);
  const day = `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const part = Math.floor(ms) % 1000;
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return `${day} ${clock}${part ? `.${String(Math.abs(part)).padStart(3, '0')}` : ''}`;
}
