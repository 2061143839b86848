// The time axis: ticks at round seconds with their unit, and the lines of the grid.
//
// This module draws on a canvas context that it gets; it keeps no state.

import { moment } from './format.js';

const LABEL_PX = 86;

/** Return the distance of ticks in µs, 1, 2 or 5 times a power of ten, so that labels do not touch. */
export function tickStep(span_us, width_px) {
  const least = (span_us * LABEL_PX) / Math.max(width_px, LABEL_PX);
  const power = 10 ** Math.floor(Math.log10(least));
  return power * ([1, 2, 5].find((factor) => factor * power >= least) || 10);
}

/** Draw the axis in [top, top + height], and the lines of the grid down to `bottom`. */
export function drawAxis(context, viewport, theme, { top, height, bottom }) {
  const step = tickStep(viewport.span, viewport.width);
  const right = viewport.left + viewport.width;
  context.font = theme.small;
  context.textBaseline = 'middle';
  context.textAlign = 'left';
  for (let at = Math.ceil(viewport.from / step) * step; at <= viewport.to; at += step) {
    const x = Math.round(viewport.x(at));
    context.fillStyle = theme.grid;
    context.fillRect(x, top + height - 6, 1, bottom - top - height + 6);
    const text = moment(Math.round(at), step);
    if (x + 4 + context.measureText(text).width > right) continue;
    context.fillStyle = theme.muted;
    context.fillText(text, x + 4, top + height / 2);
  }
  context.fillStyle = theme.border;
  context.fillRect(viewport.left, top + height, viewport.width, 1);
}
