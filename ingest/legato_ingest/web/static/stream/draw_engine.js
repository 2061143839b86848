// The engine's lanes: steps by what they did, KV cache use as an area, running and waiting requests, and lines of samples.
//
// Steps that are narrower than some pixels are added up by pixel. This module keeps no state of the stream.

import { lowerBound } from './model.js';

const BLOCK_PX = 3;
let columns = new Float64Array(0);
let peaks = new Float64Array(0);

/** Return the first and the last (exclusive) visible step. */
export function visibleSteps(steps, viewport) {
  return [lowerBound(steps.end, viewport.from), Math.min(lowerBound(steps.start, viewport.to), steps.length)];
}

/** Draw the steps as blocks. In a block, each colour has its share of the tokens of the step. */
export function drawSteps(context, steps, box, viewport, theme) {
  const [first, last] = visibleSteps(steps, viewport);
  if ((last - first) * BLOCK_PX < viewport.width) drawBlocks(context, steps, box, viewport, theme, first, last);
  else drawColumns(context, steps, box, viewport, theme, first, last);
}

function drawBlocks(context, steps, box, viewport, theme, first, last) {
  const right = viewport.left + viewport.width;
  for (let step = first; step < last; step++) {
    const x = Math.max(viewport.x(steps.start[step]), viewport.left);
    const width = Math.min(viewport.x(steps.end[step]), right) - x;
    let bottom = box.top + box.height;
    for (let work = 0; work < 4; work++) {
      const height = steps.shares[4 * step + work] * box.height;
      if (height < 0.5) continue;
      context.fillStyle = theme.work[work];
      context.fillRect(x, bottom - height, Math.max(width - (width > 4 ? 1 : 0), 0.5), height);
      bottom -= height;
    }
    const isReported = steps.preempted && steps.preempted[step] > 0;
    if (isReported && steps.start[step] >= viewport.from) drawMark(context, x, box.top, theme);
  }
}

// A triangle over a step after which preempted requests were reported.
function drawMark(context, x, top, theme) {
  context.fillStyle = theme.bad;
  context.beginPath();
  context.moveTo(x - 4, top - 1);
  context.lineTo(x + 4, top - 1);
  context.lineTo(x, top + 6);
  context.fill();
}

// By pixel: the time in each kind of work. The height is the share of the pixel's time in which the engine worked.
function drawColumns(context, steps, box, viewport, theme, first, last) {
  const width = Math.ceil(viewport.width);
  if (columns.length < 4 * width) columns = new Float64Array(4 * width);
  columns.fill(0, 0, 4 * width);
  const scale = viewport.width / viewport.span;
  for (let step = first; step < last; step++) addStep(steps, step, viewport.from, scale, width);
  for (let work = 0; work < 4; work++) {
    context.fillStyle = theme.work[work];
    for (let pixel = 0; pixel < width; pixel++) {
      let below = 0;
      for (let other = 0; other < work; other++) below += columns[4 * pixel + other];
      const share = Math.min(columns[4 * pixel + work], 1 - Math.min(below, 1));
      if (share * box.height < 0.5) continue;
      context.fillRect(viewport.left + pixel, box.top + (1 - below - share) * box.height, 1, share * box.height);
    }
  }
}

function addStep(steps, step, from, scale, width) {
  const start = Math.max(0, (steps.start[step] - from) * scale);
  const end = Math.min(width, (steps.end[step] - from) * scale);
  for (let pixel = Math.floor(start); pixel < end; pixel++) {
    const inside = Math.min(end, pixel + 1) - Math.max(start, pixel);
    for (let work = 0; work < 4; work++) columns[4 * pixel + work] += inside * steps.shares[4 * step + work];
  }
}

// The highest value of each pixel; a value holds until the next step. -1: none is known.
function collectPeaks(steps, values, viewport) {
  const width = Math.ceil(viewport.width);
  if (peaks.length < width) peaks = new Float64Array(width);
  peaks.fill(-1, 0, width);
  const [first, last] = visibleSteps(steps, viewport);
  const scale = viewport.width / viewport.span;
  for (let step = Math.max(first - 1, 0); step < last; step++) {
    const until = step + 1 < steps.length ? Math.min(steps.end[step + 1], steps.end[step] + 2e6) : steps.end[step];
    const start = Math.max(0, Math.floor((steps.end[step] - viewport.from) * scale));
    const end = Math.min(width - 1, Math.floor((until - viewport.from) * scale));
    for (let pixel = start; pixel <= end; pixel++) peaks[pixel] = Math.max(peaks[pixel], values[step]);
  }
  return width;
}

/** Draw a column of the steps as an area; the highest possible value is `most`. */
export function drawArea(context, steps, values, most, color, box, viewport) {
  const width = collectPeaks(steps, values, viewport);
  context.fillStyle = color;
  for (let pixel = 0; pixel < width; pixel++) {
    if (peaks[pixel] < 0) continue;
    const height = Math.max(1, (Math.min(peaks[pixel], most) / most) * box.height);
    context.fillRect(viewport.left + pixel, box.top + box.height - height, 1, height);
  }
}

/** Draw a column of the steps as a line of steps. */
export function drawStairs(context, steps, values, most, color, box, viewport) {
  const width = collectPeaks(steps, values, viewport);
  context.fillStyle = color;
  let before = -1;
  for (let pixel = 0; pixel < width; pixel++) {
    if (peaks[pixel] < 0) { before = -1; continue; }
    const y = Math.round(box.top + (box.height - 2) * (1 - Math.min(peaks[pixel], most) / most));
    const top = before < 0 ? y : Math.min(y, before);
    context.fillRect(viewport.left + pixel, top, 1, (before < 0 ? 0 : Math.abs(y - before)) + 2);
    before = y;
  }
}

/** Draw samples as a line. `low` and `high`: the values at the bottom and at the top. */
export function drawLine(context, series, [low, high], color, box, viewport) {
  const first = Math.max(lowerBound(series.at, viewport.from) - 1, 0);
  const last = Math.min(lowerBound(series.at, viewport.to) + 1, series.at.length);
  context.save();
  context.beginPath();
  context.rect(viewport.left, box.top - 1, viewport.width, box.height + 2);
  context.clip();
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.beginPath();
  for (let point = first; point < last; point++) {
    const y = box.top + box.height * (1 - (series.value[point] - low) / Math.max(high - low, 1e-9));
    context.lineTo(viewport.x(series.at[point]), y);
  }
  context.stroke();
  context.restore();
}
