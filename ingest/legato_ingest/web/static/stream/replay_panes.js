// The two drawings of the replay: blocks of the sizes of chunks in lines, as they arrive, and the reader's line over the whole stream.
//
// No text of a response is shown: the store has none. This module keeps no time; it draws the state at a moment that it gets.

import { causeOf } from '../causes.js';
import { bytes, duration, moment } from './format.js';
import { lastNotAbove, lowerBound } from './model.js';
import { faded, fitted } from './theme.js';

const BYTE_PX = 3;
const SPACE_PX = 3;
const LINE_PX = 13;
const BLOCK_PX = 8;
const NEW_US = 350_000;
const PAD_PX = 10;

/** Blocks of one replay. `content`: {at, bytes}. */
export class Pane {
  constructor(canvas, content) {
    this.canvas = canvas;
    this.setContent(content);
  }

  setContent(content) {
    this.content = content;
    this.starts = new Float64Array(content.at.length + 1);
    for (let chunk = 0; chunk < content.at.length; chunk++) {
      this.starts[chunk + 1] = this.starts[chunk] + Math.max(content.bytes[chunk] * BYTE_PX, 4) + SPACE_PX;
    }
  }

  /** Draw what has arrived at `now` µs. `stall`: the stall that lasts at this moment, or null. */
  draw(now, width, height, theme, stall) {
    const context = fitted(this.canvas, width, height);
    context.fillStyle = theme.bg;
    context.fillRect(0, 0, width, height);
    const arrived = lastNotAbove(this.content.at, now) + 1;
    const wide = width - 2 * PAD_PX;
    const rows = Math.max(1, Math.floor((height - 2 * PAD_PX) / LINE_PX));
    const top = Math.max(0, Math.floor(this.starts[arrived] / wide) - rows + 1);
    const first = Math.max(0, lowerBound(this.starts, top * wide) - 1);
    const fresh = lowerBound(this.content.at, now - NEW_US);
    for (let chunk = first; chunk < arrived; chunk++) {
      context.fillStyle = chunk >= fresh ? theme.accent : faded(theme.muted, 0.6);
      this.block(context, this.starts[chunk], this.starts[chunk + 1] - SPACE_PX, wide, top);
    }
    this.cursor(context, this.starts[arrived], wide, top, theme, stall);
  }

  // A block that reaches beyond the end of a line goes on in the next one.
  block(context, from, to, wide, top) {
    for (let line = Math.floor(from / wide); line * wide < to; line++) {
      if (line < top) continue;
      const left = Math.max(from - line * wide, 0);
      context.fillRect(PAD_PX + left, PAD_PX + (line - top) * LINE_PX, Math.min(to - line * wide, wide) - left, BLOCK_PX);
    }
  }

  cursor(context, at, wide, top, theme, stall) {
    const line = Math.floor(at / wide);
    context.fillStyle = stall ? causeOf(stall.cause).color : theme.text;
    context.fillRect(PAD_PX + (at - line * wide), PAD_PX + (line - top) * LINE_PX - 1, stall ? 7 : 2, BLOCK_PX + 3);
  }
}

const LEFT_PX = 10;
const RIGHT_PX = 10;
const AXIS_PX = 18;

/** Draw bytes over time: what had arrived (steps), what the reader had read (line), and where the reader waited (shaded). */
export function drawReader(canvas, content, reader, end, now, width, height, theme) {
  const context = fitted(canvas, width, height);
  const bottom = height - AXIS_PX;
  const total = content.bytes.reduce((sum, size, chunk) => sum + (content.isText[chunk] ? size : 0), 0) || 1;
  const x = (us) => LEFT_PX + (us / end) * (width - LEFT_PX - RIGHT_PX);
  const y = (sum) => bottom - 2 - (sum / total) * (bottom - 8);
  context.fillStyle = theme.bg;
  context.fillRect(0, 0, width, height);
  context.fillStyle = faded(theme.warn, 0.3);
  for (const wait of reader.waits) context.fillRect(x(wait.from), 0, Math.max(x(wait.to) - x(wait.from), 0.5), bottom);
  curve(context, theme.accent, content, (chunk) => content.at[chunk], x, y, true);
  curve(context, theme.text, content, (chunk) => reader.finished[chunk], x, y, false);
  context.fillStyle = theme.border;
  context.fillRect(0, bottom, width, 1);
  context.fillStyle = theme.bad;
  context.fillRect(Math.round(x(Math.min(now, end))), 0, 1.5, bottom);
  axisLabels(context, end, width, bottom + AXIS_PX / 2, x, theme);
  if (content.at.length) key(context, content.isSized ? `text, 0 to ${bytes(total)}:` : 'text, sizes unknown:', theme);
}

// What the two lines are, and their unit. The left corner is free: no text has arrived there yet.
function key(context, unit, theme) {
  let x = LEFT_PX;
  for (const [text, color] of [[unit, theme.muted], ['arrived', theme.accent], ['read', theme.text]]) {
    context.fillStyle = color;
    context.fillText(text, x, 10);
    x += context.measureText(text).width + 8;
  }
}

function axisLabels(context, end, width, middle, x, theme) {
  context.font = theme.small;
  context.fillStyle = theme.muted;
  context.textBaseline = 'middle';
  for (const [place, align] of [[0, 'left'], [0.5, 'center'], [1, 'right']]) {
    context.textAlign = align;
    context.fillText(place === 1 ? duration(end) : moment(place * end, 1e5), x(place * end), middle);
  }
  context.textAlign = 'left';
}

// The sum of text over time. `arrives`: in steps; else in straight lines from the start to the end of each chunk's reading.
function curve(context, color, content, timeOf, x, y, arrives) {
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.beginPath();
  const every = Math.max(1, Math.floor(content.at.length / 4000));
  let [sum, last] = [0, 0];
  for (let chunk = 0; chunk < content.at.length; chunk++) {
    if (!content.isText[chunk]) continue;
    const before = sum;
    sum += content.bytes[chunk];
    if (chunk % every && chunk !== content.at.length - 1) continue;
    const start = arrives ? timeOf(chunk) : Math.max(content.at[chunk], last);
    if (every === 1) context.lineTo(x(start), y(before));
    context.lineTo(x(timeOf(chunk)), y(sum));
    last = timeOf(chunk);
  }
  context.stroke();
}
