// Heatmap panels: counts in buckets over time, one row of equal height for each bucket.
//
// The data are already counted: a time column, the buckets' upper bounds as labels (or as names of columns), and the counts. It
// does not count values itself (Grafana's option `calculate`).

import { plotAxis, baseLayout, marginsFor, mountPlot } from './plot.js';
import { TURBO } from './colors.js';
import { el, reasonWithoutData, showMessage } from './dom.js';
import { attachHover } from './hover.js';
import { chartParts } from './legend.js';
import { allTimes, nearest, stepOf, toSeries } from './series.js';
import { timeAxis } from './axes.js';
import { formatNumber, formatTime } from './units.js';

const MOST_CELLS_ALONG = 3000;

/** Draw a heatmap panel. */
export async function drawHeatmap(element, panel, frames, context) {
  const model = modelOf(panel, frames, context);
  if (!model) {
    showMessage(element, reasonWithoutData(panel));
    return { destroy() {} };
  }
  const { root, host } = chartParts(element, labelOf(panel, model));
  if (panel.options?.legend?.show !== false) root.append(colorScale(model));
  const plot = await mountPlot(host, (size, theme) => figure(model, size, theme));
  const hover = attachHover(host, hoverOf(model, context));
  return {
    destroy() {
      hover.destroy();
      plot.destroy();
    },
  };
}

/** Return the buckets from the first to the last with counts, and the name of the one below them; null without counts. */
function bucketsOf(frames, least) {
  const all = toSeries(frames).sort((left, right) => boundOf(left.name) - boundOf(right.name));
  const counts = (one) => one.values.some((value) => value !== null && value > least);
  const first = all.findIndex(counts);
  return first < 0 ? null : { series: all.slice(first, all.findLastIndex(counts) + 1), below: all[first - 1]?.name ?? null };
}

/** Return the buckets, ascending, and the matrix of counts by bucket and column; null without counts. */
function modelOf(panel, frames, context) {
  const least = panel.options?.filterValues?.le ?? 0;
  const buckets = bucketsOf(frames, least);
  if (!buckets) return null;
  const { series, below } = buckets;
  const times = allTimes(series);
  const step = stepOf(times, context.interval_ms);
  const columns = Math.min(MOST_CELLS_ALONG, Math.round((times.at(-1) - times[0]) / step) + 1);
  const counts = series.map(() => new Array(columns).fill(null));
  let most = 0;
  series.forEach((one, row) => one.values.forEach((value, at) => {
    const column = Math.round((one.times[at] - times[0]) / step);
    if (value === null || value <= least || column >= columns) return;
    counts[row][column] = (counts[row][column] ?? 0) + value;
    most = Math.max(most, counts[row][column]);
  }));
  return { panel, context, step, first: times[0], columns, bounds: series.map((one) => one.name), below, counts, most, area: null };
}

function boundOf(name) {
  const number = Number(String(name).split(' ').at(-1).replace(/^\+?inf$/i, 'Infinity'));
  return Number.isNaN(number) ? Infinity : number;
}

function boundText(model, row) {
  const name = row < 0 ? model.below : model.bounds[row];
  if (name === null) return '0';
  const bound = boundOf(name);
  if (Number.isFinite(bound)) return formatNumber(bound, model.panel.options?.yAxis?.unit, { trim: true });
  return bound === Infinity && /inf/i.test(name) ? '∞' : name;
}

const countText = (model, count) => formatNumber(count, model.panel.options?.cellValues?.unit || 'short', { trim: true });
const countName = (model) => model.panel.options?.rowsFrame?.value || 'count';

function labelOf(panel, model) {
  const [low, high] = [boundText(model, -1), boundText(model, model.bounds.length - 1)];
  const most = `${countText(model, model.most)} ${countName(model)}`;
  return `${panel.title || 'Heatmap'}: buckets from ${low} to ${high}, at most ${most} in a cell`;
}

function bucketAxis(model, height) {
  const rows = model.bounds.length;
  const every = Math.max(1, Math.ceil((rows * 18) / Math.max(1, height)));
  const ticks = Array.from({ length: rows + 1 }, (_, at) => at).filter((at) => (rows - at) % every === 0);
  return { range: [0, rows], ticks, texts: ticks.map((at) => boundText(model, at - 1)) };
}

function exponentOf(model) {
  const { scale, exponent } = model.panel.options?.color || {};
  return scale === 'exponential' ? exponent ?? 0.5 : 1;
}

function figure(model, size, theme) {
  const { from_ms: from, to_ms: to } = model.context.span;
  const vertical = bucketAxis(model, size.height - 30);
  const margin = marginsFor(vertical.texts, []);
  const width = size.width - margin.l - margin.r;
  model.area = { left: margin.l, top: margin.t, width, height: size.height - margin.t - margin.b };
  const layout = baseLayout(theme, size, margin);
  layout.xaxis = plotAxis(timeAxis(from, to, width), theme, { grid: false });
  layout.yaxis = plotAxis(vertical, theme, { grid: false });
  return { data: [cells(model, width, [from, to])], layout };
}

function cells(model, width, [from, to]) {
  const exponent = exponentOf(model);
  const z = model.counts.map((row) => row.map((count) => (count === null ? null : (count / model.most) ** exponent)));
  const x = Array.from({ length: model.columns + 1 }, (_, at) => model.first + at * model.step);
  const y = Array.from({ length: model.bounds.length + 1 }, (_, at) => at);
  // A gap between narrow cells would hide them. It is not 0: without gaps, Plotly draws an image with an inline style, which the
  // page's content security policy blocks, so the cells would be blurred.
  const wide = (model.step / (to - from)) * width > 4;
  const gap = Math.max(0.001, wide ? model.panel.options?.cellGap ?? 1 : 0);
  const colorscale = TURBO.map((color, at) => [at / (TURBO.length - 1), color]);
  return { type: 'heatmap', x, y, z, zmin: 0, zmax: 1, colorscale, showscale: false, xgap: gap, ygap: gap, hoverinfo: 'skip' };
}

/** Return the scale of colours below the chart. Its marks are counts at equal distances of the colour. */
function colorScale(model) {
  const bar = el('span', 'pn-scale-bar', { 'aria-hidden': 'true' });
  bar.style.backgroundImage = `linear-gradient(to right, ${TURBO.join(', ')})`;
  const marks = [0, 0.5, 1].map((part) => Math.max(part ? 1 : 0, Math.round(model.most * part ** (1 / exponentOf(model)))));
  const texts = marks.map((count) => el('span', '', { text: countText(model, count) }));
  return el('div', 'pn-scale', {}, [el('span', 'pn-scale-bar-box', {}, [bar, el('span', 'pn-scale-marks', {}, texts)]), countName(model)]);
}

function hoverOf(model, context) {
  const { from_ms: from, to_ms: to } = context.span;
  const xOf = (time) => model.area.left + ((time - from) / (to - from)) * model.area.width;
  const timeAt = (x) => from + ((x - model.area.left) / model.area.width) * (to - from);
  return {
    area: () => model.area,
    snaps: false,
    xOf: (time) => (time >= from && time <= to ? xOf(time) : null),
    timeAt,
    stops: () => columnTimes(model).map((time) => xOf(time + model.step / 2)).filter((x) => x <= model.area.left + model.area.width),
    onSelect: context.zoom ? (first, last) => context.zoom(Math.round(timeAt(first)), Math.round(timeAt(last))) : undefined,
    describe: (x, y) => describe(model, timeAt(x), y, x),
  };
}

function columnTimes(model) {
  return Array.from({ length: model.columns }, (_, at) => model.first + at * model.step);
}

/** The tooltip: the bucket under the pointer first, then the other buckets of this time, from above. */
function describe(model, time, y, x) {
  const times = columnTimes(model);
  const column = nearest(times, time - model.step / 2);
  if (Math.abs(times[column] + model.step / 2 - time) > model.step / 2 + 1) return null;
  const pointed = Math.floor((1 - (y - model.area.top) / model.area.height) * model.bounds.length);
  const rows = [];
  for (let row = model.bounds.length - 1; row >= 0; row -= 1) {
    const count = model.counts[row][column];
    if (count === null && row !== pointed) continue;
    const color = count === null ? null : colorOf((count / model.most) ** exponentOf(model));
    const name = `${row === pointed ? '▸ ' : ''}${boundText(model, row - 1)} – ${boundText(model, row)}`;
    rows.push({ color, name, text: `${countText(model, count ?? 0)} ${countName(model)}` });
  }
  return { x, title: `${formatTime(times[column])} – ${formatTime(times[column] + model.step).slice(11)}`, rows };
}

function colorOf(part) {
  return TURBO[Math.round(part * (TURBO.length - 1))];
}
