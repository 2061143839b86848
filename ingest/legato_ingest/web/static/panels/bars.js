// The bars of a time series panel, on a canvas above the chart's grid.
//
// Thousands of stacked bars are drawn in a few milliseconds this way; as parts of an SVG they take a fifth of a second. It draws
// rectangles only: axes, grid and thresholds are Plotly's.

import { contrast } from './colors.js';
import { el, readTheme } from './dom.js';

const CLASS = 'pn-bars';
const LEAST_WITH_GAP = 4;
const LEAST_WITH_OUTLINE = 7;

/**
 * Draw the bars of `model` into the host's canvas, which is made when it is needed.
 *
 * `model`: {bars: [{times, ends: [{low, high} | null], color, range: [low, high]}], step, area, context: {span}}.
 */
export function drawBars(host, model) {
  let canvas = host.querySelector(`.${CLASS}`);
  if (!model.bars.length && !canvas) return;
  if (!canvas) {
    canvas = el('canvas', CLASS, { 'aria-hidden': 'true' });
    host.querySelector('.pn-graph').after(canvas);
  }
  const pen = prepared(canvas, model.area);
  const theme = readTheme(host);
  for (const series of model.bars) drawSeries(pen, series, model, theme);
}

/** Put the canvas over the drawing area, with as many pixels as the screen has. Returns its context, in CSS pixels. */
function prepared(canvas, { left, top, width, height }) {
  const density = window.devicePixelRatio || 1;
  [canvas.width, canvas.height] = [Math.max(1, Math.round(width * density)), Math.max(1, Math.round(height * density))];
  for (const [name, value] of Object.entries({ left, top, width, height })) canvas.style[name] = `${value}px`;
  const pen = canvas.getContext('2d');
  pen.scale(density, density);
  return pen;
}

function drawSeries(pen, series, { step, area, context }, theme) {
  const { from_ms: from, to_ms: to } = context.span;
  const [low, high] = series.range;
  const perTime = area.width / (to - from);
  const width = step * perTime;
  const gap = width > LEAST_WITH_GAP ? Math.max(1, 0.08 * width) : 0;
  const yOf = (value) => area.height * (1 - (value - low) / (high - low));
  // A colour that hardly differs from the background gets an outline, if the bars have room for one.
  const faint = width > LEAST_WITH_OUTLINE && contrast(series.color, theme.panel) < 1.9;
  pen.fillStyle = series.color;
  pen.strokeStyle = theme.muted;
  series.ends.forEach((end, at) => {
    if (!end || end.low === end.high) return;
    const x = (series.times[at] - from) * perTime + gap / 2;
    const [top, bottom] = [Math.min(yOf(end.high), yOf(end.low)), Math.max(yOf(end.high), yOf(end.low))];
    pen.fillRect(x, top, width - gap, bottom - top);
    if (faint) pen.strokeRect(x + 0.5, top + 0.5, Math.max(0, width - gap - 1), Math.max(0, bottom - top - 1));
  });
}
