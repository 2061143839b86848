// Time series from frames: names, labels, order in time, and gaps.
//
// It follows Grafana's rule for time series: the first time column is x, string columns are labels, each numeric column is a
// series for each combination of labels. It does not know colours and does not draw.

import { kindOf } from './fields.js';

/**
 * Return the series of all frames: [{name, column, times, values}], each in ascending order of time.
 *
 * Name: the label if there is one numeric column (or a column named Value), else the column and the label. `column`: the column's own name.
 */
export function toSeries(frames) {
  const found = new Map();
  for (const frame of frames) if (frame?.rows) addFrame(frame, found);
  return [...found.values()].sort(byColumnAndLabel).map(inOrder);
}

const WORDS = new Intl.Collator('en', { numeric: true });

/** The order of the columns, then of the labels: a series keeps its place and colour when others come and go. */
function byColumnAndLabel(left, right) {
  return left.place - right.place || WORDS.compare(left.name, right.name);
}

function addFrame(frame, found) {
  const time = frame.columns.find((column) => kindOf(column.type) === 'time');
  if (!time) return;
  const labels = frame.columns.filter((column) => ['string', 'boolean'].includes(kindOf(column.type)));
  const numbers = frame.columns.filter((column) => kindOf(column.type) === 'number');
  numbers.forEach((column, place) => addColumn({ column, place, time, labels, alone: numbers.length === 1 }, found));
}

function addColumn({ column, place, time, labels, alone }, found) {
  for (let row = 0; row < time.values.length; row += 1) {
    if (time.values[row] === null) continue;
    const name = seriesName(column.name, labels, row, alone);
    let series = found.get(name);
    if (!series) found.set(name, (series = { name, column: column.name, place, times: [], values: [] }));
    series.times.push(time.values[row]);
    series.values.push(finite(column.values[row]));
  }
}

function finite(value) {
  if (typeof value === 'boolean') return Number(value);
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

function seriesName(column, labels, row, alone) {
  if (!labels.length) return column;
  const label = labels.map((one) => String(one.values[row] ?? '')).filter(Boolean).join(' · ');
  if (!label) return column;
  return alone || column === 'Value' ? label : `${column} ${label}`;
}

function inOrder(series) {
  const { times } = series;
  if (times.every((time, at) => at === 0 || times[at - 1] <= time)) return series;
  const order = times.map((_, at) => at).sort((left, right) => times[left] - times[right]);
  return { ...series, times: order.map((at) => times[at]), values: order.map((at) => series.values[at]) };
}

/** Return all times of the series, ascending and each once. */
export function allTimes(list) {
  const times = new Set();
  for (const series of list) for (const time of series.times) times.add(time);
  return Float64Array.from(times).sort();
}

/** Return the width of a data point in milliseconds: the smallest distance of two times, at least the interval. */
export function stepOf(times, intervalMs) {
  let smallest = Infinity;
  for (let at = 1; at < times.length; at += 1) smallest = Math.min(smallest, times[at] - times[at - 1]);
  return Number.isFinite(smallest) ? Math.max(smallest, intervalMs || 0) : intervalMs || 60000;
}

/** Return {x, y} with a null where more than one and a half steps have no data: a gap in the data is a gap in the curve. */
export function withGaps(series, step) {
  const x = [];
  const y = [];
  for (let at = 0; at < series.times.length; at += 1) {
    const time = series.times[at];
    if (at > 0 && time - series.times[at - 1] > 1.5 * step) {
      x.push(series.times[at - 1] + step);
      y.push(null);
    }
    x.push(time);
    y.push(series.values[at]);
  }
  return { x, y };
}

/** Return {x, y} of the points without a neighbour, which a line does not show. */
export function isolatedPoints({ x, y }) {
  const points = { x: [], y: [] };
  for (let at = 0; at < y.length; at += 1) {
    if (y[at] === null || (y[at - 1] ?? null) !== null || (y[at + 1] ?? null) !== null) continue;
    points.x.push(x[at]);
    points.y.push(y[at]);
  }
  return points;
}

/** Return {last, max, min, sum} of the values that are not null; null for each one without values. */
export function summary(values) {
  const result = { last: null, max: null, min: null, sum: null };
  for (const value of values) {
    if (value === null || value === undefined) continue;
    result.last = value;
    result.max = result.max === null ? value : Math.max(result.max, value);
    result.min = result.min === null ? value : Math.min(result.min, value);
    result.sum = (result.sum ?? 0) + value;
  }
  return result;
}

/** Return the index of the time nearest to `time` in an ascending array, or -1 for an empty one. */
export function nearest(times, time) {
  let [low, high] = [0, times.length - 1];
  if (high < 0) return -1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low > 0 && time - times[low - 1] <= times[low] - time ? low - 1 : low;
}

/** Stack series: return, for each one, the lower and upper ends [{low, high}] of its values. Negative values go down from 0. */
export function stack(list) {
  const above = new Map();
  const below = new Map();
  return list.map((series) =>
    series.values.map((value, at) => {
      if (value === null) return null;
      const ends = value < 0 ? below : above;
      const base = ends.get(series.times[at]) ?? 0;
      ends.set(series.times[at], base + value);
      return { low: base, high: base + value };
    }),
  );
}
