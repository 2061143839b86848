// Bar chart panels: groups of bars, one group for each row of a table, with the row's label on the x axis.
//
// Rows are at equal distances. Stacking and horizontal bars are drawn as groups of vertical bars.

import { plotAxis, baseLayout, marginsFor } from './plot.js';
import { categoryAxis, valueAxis } from './axes.js';
import { resolveColor, seriesStyle } from './colors.js';
import { display, kindOf, settingsOf } from './fields.js';
import { legendFigures } from './legend.js';
import { summary } from './series.js';
import { drawSeriesChart } from './series_chart.js';
import { formatNumber } from './units.js';
import { visibleText } from '../visible.js';

/** Draw a bar chart panel. */
export function drawBarChart(element, panel, frames, context) {
  const frame = frames.find((one) => one?.rows);
  return drawSeriesChart(element, panel, (theme) => frame && modelOf(panel, frame, context, theme), { figure, hoverOf });
}

function modelOf(panel, frame, context, theme) {
  const along = frame.columns.find((column) => column.name === panel.options?.xField)
    ?? frame.columns.find((column) => kindOf(column.type) === 'string') ?? frame.columns[0];
  const settings = settingsOf(panel, along.name, along.type);
  const names = along.values.map((value) => visibleText(display(settings, value, along.type, theme).text));
  const numbers = frame.columns.filter((column) => column !== along && kindOf(column.type) === 'number');
  let free = 0;
  const series = numbers.map((column) => {
    const own = settingsOf(panel, column.name, column.type);
    const fixed = own.color?.mode === 'fixed' ? resolveColor(own.color.fixedColor, theme) : null;
    const format = (value) => formatNumber(value, own.unit, { decimals: own.decimals ?? undefined });
    const color = fixed ?? seriesStyle(free++, context.theme).color;
    const figures = legendFigures(panel, summary(column.values), format);
    return { name: column.name, values: column.values, color, settings: own, format, figures };
  });
  return { panel, names, along: along.name, series, hidden: new Set(), area: null };
}

function figure(model, size, theme) {
  const visible = model.series.filter((series) => !model.hidden.has(series.name));
  const all = visible.flatMap((series) => series.values.filter((value) => value !== null));
  const extent = all.length ? [Math.min(...all), Math.max(...all)] : [0, 1];
  const vertical = valueAxis(extent, model.series[0].settings.unit, size.height - 30, { fromZero: true });
  const margin = marginsFor(vertical.texts, []);
  const width = size.width - margin.l - margin.r;
  model.area = { left: margin.l, top: margin.t, width, height: size.height - margin.t - margin.b };
  const layout = baseLayout(theme, size, margin);
  // Plotly takes tags in a text for markup.
  const texts = model.names.map((name) => name.replace(/&/g, '&amp;').replace(/</g, '&lt;'));
  layout.xaxis = plotAxis(categoryAxis(texts, width), theme, { grid: false });
  layout.yaxis = plotAxis(vertical, theme);
  return { data: visible.map((series, at) => barsOf(series, at, visible.length, model.panel.options || {})), layout };
}

/** Return all bars of a series as one filled path. `at` of `count`: its place in each group. */
function barsOf(series, at, count, options) {
  const group = options.groupWidth ?? 0.7;
  const width = (group / count) * (options.barWidth ?? 0.97);
  const offset = -group / 2 + (at + 0.5) * (group / count) - width / 2;
  const x = [];
  const y = [];
  series.values.forEach((value, row) => {
    if (!value) return;
    const [from, to] = [row + offset, row + offset + width];
    x.push(from, from, to, to, from, null);
    y.push(0, value, value, 0, 0, null);
  });
  const line = { width: 0, simplify: false };
  return { type: 'scatter', mode: 'lines', hoverinfo: 'skip', name: series.name, x, y, line, fill: 'toself', fillcolor: series.color };
}

function hoverOf(model) {
  const width = () => model.area.width / model.names.length;
  const xOf = (row) => model.area.left + (row + 0.5) * width();
  return {
    area: () => model.area,
    stops: () => model.names.map((_, row) => xOf(row)),
    describe(x) {
      const row = Math.min(model.names.length - 1, Math.max(0, Math.floor((x - model.area.left) / width())));
      return { x: xOf(row), title: `${model.along} ${model.names[row]}`, rows: rowsAt(model, row) };
    },
  };
}

function rowsAt(model, row) {
  const visible = model.series.filter((series) => !model.hidden.has(series.name) && series.values[row] !== null);
  const rows = visible.map((series) => ({
    color: series.color, name: series.name, text: series.format(series.values[row]), value: series.values[row],
  }));
  const { mode, sort } = model.panel.options?.tooltip || {};
  const order = mode === 'multi' ? { desc: -1, asc: 1 }[sort] ?? 0 : 0;
  return order ? rows.sort((left, right) => order * (left.value - right.value)) : rows;
}
