// The lane of one vantage: each chunk is a tick, its height by its bytes, its colour by its kind; holds of the application below.
//
// All chunks of one pixel make one tick, so the work a frame is bounded by the visible chunks and the width. Keeps no state of the stream.

import { isContent, lowerBound } from './model.js';

const HOLD_PX = 4;
const KINDS = 8;
let columns = new Float64Array(0);

// Bytes (or chunks, where sizes are unknown) by pixel and kind.
function collect(vantage, viewport, first, last, width) {
  if (columns.length < width * KINDS) columns = new Float64Array(width * KINDS);
  columns.fill(0, 0, width * KINDS);
  const { at, kind, bytes } = vantage;
  const scale = viewport.width / viewport.span;
  for (let chunk = first; chunk < last; chunk++) {
    const pixel = Math.min(width - 1, Math.max(0, Math.floor((at[chunk] - viewport.from) * scale)));
    const code = Math.min(kind[chunk], KINDS - 1);
    columns[pixel * KINDS + code] += bytes && isContent(code) ? Math.max(bytes[chunk], 1) : 1;
  }
}

// The largest sum of content in one pixel.
function highest(width) {
  let most = 1;
  for (let pixel = 0; pixel < width; pixel++) {
    const start = pixel * KINDS;
    most = Math.max(most, columns[start + 1] + columns[start + 2] + columns[start + 3]);
  }
  return most;
}

function drawKinds(context, theme, box, viewport, width, thick) {
  const most = Math.sqrt(highest(width));
  const bottom = box.top + box.height - HOLD_PX - 1;
  const room = box.height - HOLD_PX - 4;
  for (let code = 0; code < KINDS; code++) {
    context.fillStyle = theme.kinds[code];
    for (let pixel = 0; pixel < width; pixel++) {
      const value = columns[pixel * KINDS + code];
      if (value <= 0) continue;
      const height = isContent(code) ? Math.max(3, Math.round((room * Math.sqrt(value)) / most)) : Math.round(room * 0.22);
      context.fillRect(viewport.left + pixel, bottom - height, isContent(code) ? thick : 1, height);
    }
  }
}

function drawHolds(context, theme, box, vantage, viewport, first, last) {
  context.fillStyle = theme.hold;
  const top = box.top + box.height - HOLD_PX;
  const scale = viewport.width / viewport.span;
  let drawn = -1;
  for (let chunk = Math.max(first - 1, 0); chunk < last; chunk++) {
    const length = vantage.hold[chunk] * scale;
    if (length < 0.7) continue;
    const x = Math.max(viewport.x(vantage.at[chunk]), viewport.left);
    const end = Math.min(viewport.x(vantage.at[chunk] + vantage.hold[chunk]), viewport.left + viewport.width);
    if (end <= drawn) continue;
    context.fillRect(x, top, Math.max(1, end - x), HOLD_PX);
    drawn = end;
  }
}

/** Draw one vantage in `box` ({top, height}). */
export function drawChunks(context, vantage, box, viewport, theme) {
  const width = Math.ceil(viewport.width);
  const first = lowerBound(vantage.at, viewport.from);
  const last = lowerBound(vantage.at, viewport.to, first);
  drawBounds(context, vantage, box, viewport, theme);
  collect(vantage, viewport, first, last, width);
  const apart = viewport.width / Math.max(last - first, 1);
  drawKinds(context, theme, box, viewport, width, apart > 12 ? 3 : apart > 4 ? 2 : 1);
  if (vantage.hold) drawHolds(context, theme, box, vantage, viewport, first, last);
}

// A line from the start of the request to its end at this vantage.
function drawBounds(context, vantage, box, viewport, theme) {
  const right = viewport.left + viewport.width;
  const from = Math.max(viewport.left, Math.min(viewport.x(vantage.offset_us), right));
  const to = Math.max(viewport.left, Math.min(viewport.x(vantage.end), right));
  context.fillStyle = theme.border;
  context.fillRect(from, box.top + box.height - HOLD_PX - 1, to - from, 1);
}
