// Time series panels: lines, bars and points over time, with thresholds, annotations, two axes, a legend and a tooltip.
//
// Bars are drawn by bars.js, everything else by Plotly. A bar begins at its time and is as wide as a step: it covers the interval
// that its value was measured in. Reading frames is in series.js, ticks are in axes.js.

import { plotAxis, baseLayout, marginsFor } from './plot.js';
import { drawBars } from './bars.js';
import { resolveColor, seriesStyle, withOpacity } from './colors.js';
import { settingsOf, thresholdSteps } from './fields.js';
import { legendFigures } from './legend.js';
import { allTimes, isolatedPoints, nearest, stack, stepOf, summary, toSeries, withGaps } from './series.js';
import { drawSeriesChart } from './series_chart.js';
import { timeAxis, valueAxis } from './axes.js';
import { formatNumber, formatTime } from './units.js';

/** Draw a time series panel. */
export function drawTimeSeries(element, panel, frames, context) {
  const parts = { figure, hoverOf: (model) => hoverOf(model, context), after: drawBars };
  return drawSeriesChart(element, panel, (theme) => modelOf(panel, frames, context, theme), parts);
}

function modelOf(panel, frames, context, theme) {
  const found = toSeries(frames).filter((one) => one.values.some((value) => value !== null));
  const times = allTimes(found);
  const model = { panel, context, times, step: stepOf(times, context.interval_ms), hidden: new Set(), bars: [], area: null };
  let free = 0;
  model.series = found.map((one) => {
    const settings = settingsOf(panel, one.name, 'Float64', one.column);
    const fixed = settings.color?.mode === 'fixed' ? resolveColor(settings.color.fixedColor, theme) : null;
    const style = fixed ? { color: fixed, dash: 'solid' } : seriesStyle(free++, context.theme);
    const format = (value) => formatNumber(value, settings.unit, { decimals: settings.decimals ?? undefined });
    const figures = legendFigures(panel, summary(one.values), format);
    return { ...one, ...style, settings, format, figures, right: settings.custom.axisPlacement === 'right' };
  });
  // The most important part of a stack is listed first: a legend that is too long has to be scrolled.
  const total = ({ values }) => summary(values).sum ?? 0;
  if (model.series.some(isStacked)) model.listed = [...model.series].sort((left, right) => total(right) - total(left));
  return model;
}

const isStacked = (series) => ['normal', 'percent'].includes(series.settings.custom.stacking?.mode);
const styleOf = (series) => series.settings.custom.drawStyle || 'line';

/** Return the visible series with the lower and upper ends of their values, if they are stacked or bars. */
function visibleSeries(model) {
  const visible = model.series.filter((series) => !model.hidden.has(series.name));
  const stacked = visible.filter(isStacked);
  const ends = new Map(stack(stacked).map((values, at) => [stacked[at], values]));
  return visible.map((series) => {
    const own = styleOf(series) === 'bars' ? series.values.map((value) => (value === null ? null : { low: 0, high: value })) : null;
    return { ...series, ends: ends.get(series) ?? own };
  });
}

function extentOf(list, [from, to]) {
  let [low, high] = [Infinity, -Infinity];
  const take = (value) => {
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  for (const series of list) {
    series.values.forEach((value, at) => {
      if (value === null || series.times[at] < from || series.times[at] > to) return;
      take(series.ends ? series.ends[at].high : value);
      if (series.ends) take(series.ends[at].low);
    });
  }
  return low <= high ? [low, high] : [0, 1];
}

/** Return the axis of the series on one side, or null if there are none. */
function axisOf(list, height, span) {
  if (!list.length) return null;
  const { unit, min, max } = list[0].settings;
  return valueAxis(extentOf(list, span), unit, height, { fromZero: list.some((series) => series.ends), limits: { min, max } });
}

/** Return Plotly's data and layout for this size. It also notes where the drawing area is, for the tooltip. */
function figure(model, size, theme) {
  const span = [model.context.span.from_ms, model.context.span.to_ms];
  const visible = visibleSeries(model);
  const left = axisOf(visible.filter((series) => !series.right), size.height - 30, span);
  const right = axisOf(visible.filter((series) => series.right), size.height - 30, span);
  const margin = marginsFor(left?.texts ?? [], right?.texts ?? []);
  const width = size.width - margin.l - margin.r;
  model.area = { left: margin.l, top: margin.t, width, height: size.height - margin.t - margin.b };
  const layout = baseLayout(theme, size, margin);
  layout.xaxis = plotAxis(timeAxis(...span, width), theme);
  layout.yaxis = plotAxis(left ?? { range: [0, 1], ticks: [], texts: [] }, theme);
  if (right) layout.yaxis2 = plotAxis(right, theme, { grid: !left, more: { overlaying: 'y', side: 'right' } });
  layout.shapes = [...annotationShapes(model, span, theme), ...thresholdShapes(visible, left, right, theme)];
  const isBars = (series) => styleOf(series) === 'bars';
  model.bars = visible.filter(isBars).map((series) => ({ ...series, range: (series.right ? right : left).range }));
  const others = visible.filter((series) => !isBars(series));
  return { data: others.flatMap((series) => traces(series, model.step, others.length)), layout };
}

function traces(series, step, count) {
  const axis = { yaxis: series.right ? 'y2' : 'y', type: 'scatter', hoverinfo: 'skip', name: series.name };
  if (styleOf(series) === 'points') return [{ ...axis, ...pointMarks(series, { x: series.times, y: series.values }) }];
  return lineTraces(series, step, count).map((trace) => ({ ...axis, ...trace }));
}

/** Return all points of a series as one path: lines without length, which panels.css gives round ends. */
function pointMarks(series, points) {
  const x = [];
  const y = [];
  points.y.forEach((value, at) => {
    if (value === null) return;
    x.push(points.x[at], points.x[at], null);
    y.push(value, value, null);
  });
  return { mode: 'lines', x, y, line: { color: series.color, width: series.settings.custom.pointSize || 5, simplify: false } };
}

function lineTraces(series, step, count) {
  const custom = series.settings.custom;
  const values = series.ends ? series.ends.map((end) => end?.high ?? null) : series.values;
  const points = withGaps({ times: series.times, values }, step);
  const line = { color: series.color, width: custom.lineWidth ?? 1, dash: series.dash };
  const found = [{ mode: 'lines', ...points, line, connectgaps: false }];
  const alone = isolatedPoints(points);
  if (alone.x.length) found.push(pointMarks(series, alone));
  // Areas of many series would only darken each other.
  if (custom.fillOpacity && count <= 4) found.unshift(areaBelow(points, withOpacity(series.color, custom.fillOpacity / 100)));
  return found;
}

/** Return the area between a curve and 0. It has the curve's gaps, which Plotly's own filling down to 0 closes. */
function areaBelow(points, fillcolor) {
  const x = [];
  const y = [];
  const add = (at, value) => {
    x.push(points.x[at]);
    y.push(value);
  };
  points.y.forEach((value, at) => {
    if (value !== null && (points.y[at - 1] ?? null) === null) add(at, 0);
    add(at, value);
    if (value !== null && (points.y[at + 1] ?? null) === null) add(at, 0);
  });
  return { mode: 'lines', x, y, fill: 'toself', fillcolor, line: { width: 0 } };
}

function thresholdShapes(visible, left, right, theme) {
  const shapes = [];
  for (const [axis, side, name] of [[left, false, 'y'], [right, true, 'y2']]) {
    const series = visible.find((one) => one.right === side);
    const style = series?.settings.custom.thresholdsStyle?.mode ?? 'off';
    if (!axis || !['dashed', 'line', 'line+area', 'dashed+area'].includes(style)) continue;
    for (const { value, color } of thresholdSteps(series.settings, axis.range)) {
      if (value === null || value < axis.range[0] || value > axis.range[1]) continue;
      const line = { color: resolveColor(color, theme), width: 1.5, dash: style.startsWith('dashed') ? '6px,4px' : 'solid' };
      shapes.push({ type: 'line', xref: 'paper', x0: 0, x1: 1, yref: name, y0: value, y1: value, line, layer: 'above' });
    }
  }
  return shapes;
}

function annotationShapes(model, [from, to], theme) {
  return (model.context.annotations || []).filter((one) => one.time_ms <= to && (one.end_ms ?? one.time_ms) >= from).map((one) => {
    const color = resolveColor(one.color || 'blue', theme);
    const [x0, x1] = [Math.max(from, one.time_ms), Math.min(to, one.end_ms ?? one.time_ms)];
    const place = { x0, x1, yref: 'paper', y0: 0, y1: 1, layer: 'below' };
    if (one.end_ms) return { ...place, type: 'rect', fillcolor: withOpacity(color, 0.14), line: { width: 0 } };
    return { ...place, type: 'line', line: { color, width: 1.5, dash: '4px,3px' } };
  });
}

/** Return what the tooltip needs: times to pixels and back, and the values at a place. */
function hoverOf(model, context) {
  const { from_ms: from, to_ms: to } = context.span;
  const xOf = (time) => model.area.left + ((time - from) / (to - from)) * model.area.width;
  const timeAt = (x) => from + ((x - model.area.left) / model.area.width) * (to - from);
  const inSpan = (time) => time >= from && time <= to;
  return {
    area: () => model.area,
    xOf: (time) => (inSpan(time) ? xOf(time) : null),
    timeAt,
    stops: () => Array.from(model.times).filter(inSpan).map(xOf),
    onSelect: context.zoom ? (first, last) => context.zoom(Math.round(timeAt(first)), Math.round(timeAt(last))) : undefined,
    describe: (x) => describe(model, timeAt(x), (6 / model.area.width) * (to - from), xOf),
  };
}

function describe(model, time, tolerance, xOf) {
  const bars = model.series.some((series) => styleOf(series) === 'bars');
  const at = nearest(model.times, bars ? time - model.step / 2 : time);
  if (at < 0) return null;
  const snapped = model.times[at];
  const rows = [];
  for (const series of model.series) {
    if (model.hidden.has(series.name)) continue;
    const index = nearest(series.times, snapped);
    const value = series.values[index];
    if (value === null || Math.abs(series.times[index] - snapped) > Math.min(tolerance, model.step / 2)) continue;
    rows.push({ color: series.color, name: series.name, text: series.format(value), value });
  }
  const order = { desc: -1, asc: 1 }[model.panel.options?.tooltip?.sort] ?? 0;
  if (order) rows.sort((left, right) => order * (left.value - right.value));
  return { x: xOf(snapped), title: formatTime(snapped), rows, notes: notesAt(model, time, tolerance) };
}

function notesAt(model, time, tolerance) {
  const near = (model.context.annotations || []).filter(
    (one) => time >= one.time_ms - tolerance && time <= (one.end_ms ?? one.time_ms) + tolerance,
  );
  return near.slice(0, 6).map((one) => [one.title, one.text].filter(Boolean).join(': '));
}
