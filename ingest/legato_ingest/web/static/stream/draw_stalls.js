// The stalls across all lanes: shading in the colour of the cause, and a label where there is room.
//
// This module draws on a canvas context that it gets; it keeps no state.

import { causeOf } from '../causes.js';
import { duration } from './format.js';
import { cut } from './lanes.js';
import { faded } from './theme.js';

const LABEL_MIN_PX = 34;

// How strongly a colour shades: the dark colours of the palette are hardly visible on a dark page when they are faint.
function strength(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return 0.3 * red + 0.59 * green + 0.11 * blue < 90 ? 1.9 : 1;
}

// The visible part of a stall in pixels, at least two wide; null if it is not visible.
function visible(stall, viewport) {
  if (stall.end_us < viewport.from || stall.start_us > viewport.to) return null;
  const left = Math.max(viewport.x(stall.start_us), viewport.left);
  const right = Math.min(viewport.x(stall.end_us), viewport.left + viewport.width);
  return { left, width: Math.max(right - left, 2) };
}

/**
 * Shade the stalls: strongly over the vantages of the stalled response, weakly over the engine's lanes.
 * `vantages`: those of the model; a stall names its vantage by number.
 */
export function shadeStalls(context, stalls, vantages, chosen, viewport, placed) {
  const lanes = placed.lanes.filter((lane) => lane.kind === 'vantage');
  stalls.forEach((stall, number) => {
    const part = visible(stall, viewport);
    if (!part) return;
    const { color } = causeOf(stall.cause);
    const response = vantages[stall.vantage].response_id;
    context.fillStyle = faded(color, strength(color) * (number === chosen ? 0.34 : 0.22));
    context.fillRect(part.left, placed.labels, part.width, lanes[0].title_top - placed.labels);
    lanes.forEach((lane, place) => {
      if (lane.vantage.response_id && response && lane.vantage.response_id !== response) return;
      const bottom = place + 1 < lanes.length ? lanes[place + 1].title_top : placed.vantages_end;
      context.fillRect(part.left, lane.title_top, part.width, bottom - lane.title_top);
    });
    context.fillStyle = faded(color, strength(color) * (number === chosen ? 0.16 : 0.09));
    context.fillRect(part.left, placed.vantages_end, part.width, placed.height - placed.vantages_end);
  });
}

/** Outline the chosen stall and label all stalls with room for it: the name of the cause and the length, or the length alone. */
export function labelStalls(context, stalls, chosen, viewport, placed, theme) {
  context.font = theme.small;
  context.textAlign = 'left';
  context.textBaseline = 'middle';
  stalls.forEach((stall, number) => {
    const part = visible(stall, viewport);
    if (!part) return;
    const { color, label } = causeOf(stall.cause);
    context.fillStyle = color;
    context.fillRect(part.left, placed.labels, part.width, 3);
    if (number === chosen) {
      context.strokeStyle = color;
      context.lineWidth = 1.5;
      context.strokeRect(part.left + 0.75, placed.labels + 0.75, Math.max(part.width - 1.5, 1), placed.height - placed.labels - 3);
    }
    if (part.width < LABEL_MIN_PX) return;
    const length = duration(stall.gap_us);
    const full = `${label} ${length}`;
    const room = part.width - 8;
    const text = context.measureText(full).width <= room || room > 110 ? full : length;
    if (text === length && context.measureText(length).width > room) return;
    context.fillStyle = theme.text;
    context.fillText(cut(context, text, room), part.left + 4, placed.labels + 11);
  });
}
