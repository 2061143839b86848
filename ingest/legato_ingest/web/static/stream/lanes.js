// The lanes of the timeline: which there are, where they stand, their names and units, and what draws each of them.
//
// A lane without data is one line with the reason. This module knows no pointer and no keys.

import { drawChunks } from './draw_chunks.js';
import { drawArea, drawLine, drawStairs, drawSteps } from './draw_engine.js';
import { count } from './format.js';
import { visibleText } from '../visible.js';

const AXIS_PX = 26;
const LABELS_PX = 18;
const TITLE_PX = 16;
const GAP_PX = 9;
const COMPACT_BELOW_PX = 700;
const NAMES_PX = 148;

const NO_CHUNKS = {
  stored: 'No chunk was recorded.',
  expired: 'Its timeline is no longer stored.',
  unknown: 'Its span had only a summary: no chunk is known.',
};

const largest = (values) => values.reduce((most, value) => Math.max(most, value), 0);

function vantageLanes(model) {
  const many = new Set(model.vantages.map((vantage) => vantage.response_id).filter(Boolean)).size > 1;
  return model.vantages.map((vantage) => ({
    kind: 'vantage',
    vantage,
    title: vantage.vantage,
    note: many ? vantage.response_id || vantage.service : vantage.service,
    unit: vantage.bytes ? 'bytes per chunk' : 'chunks (sizes unknown)',
    height: model.vantages.length > 6 ? 34 : 54,
    reason: vantage.at.length ? '' : NO_CHUNKS[vantage.timeline],
    draw: (context, box, viewport, theme) => drawChunks(context, vantage, box, viewport, theme),
  }));
}

function stepLanes({ engine }) {
  const steps = engine.steps;
  const first = { kind: 'steps', title: 'engine steps', note: engine.id, unit: 'share of tokens', height: 44, steps };
  first.reason = engine.reason;
  const lanes = [first];
  if (!steps) return lanes;
  lanes[0].draw = (context, box, viewport, theme) => drawSteps(context, steps, box, viewport, theme);
  if (steps.is_cut) lanes[0].unit = `first ${count(steps.length)} steps`;
  lanes.push({
    kind: 'kv', title: 'KV cache', unit: 'share in use, 0 to 100 %', height: 34, steps,
    reason: steps.kv_used_ppm ? '' : 'The engine did not report the use of its KV cache.',
    draw: (context, box, viewport, theme) => drawArea(context, steps, steps.kv_used_ppm, 1e6, theme.kv, box, viewport),
  });
  lanes.push(loadLane(steps));
  return lanes;
}

function loadLane(steps) {
  const columns = [steps.running, steps.waiting];
  const most = Math.max(1, ...columns.map((values) => (values ? largest(values) : 0)));
  return {
    kind: 'load', title: 'requests', unit: `running, waiting; 0 to ${count(most)}`, height: 38, steps,
    reason: columns.some(Boolean) ? '' : 'The engine did not report its running and waiting requests.',
    draw: (context, box, viewport, theme) =>
      columns.forEach((values, number) => values && drawStairs(context, steps, values, most, theme.lines[number], box, viewport)),
  };
}

function lineLane(kind, title, { series, reason }, unit, rangeOf) {
  const values = series.flatMap((one) => Array.from(one.value));
  const range = rangeOf(values);
  return {
    kind, title, series, reason, height: 30, unit: unit(range),
    draw: (context, box, viewport, theme) =>
      series.forEach((one, number) => drawLine(context, one, range, theme.lines[number % theme.lines.length], box, viewport)),
  };
}

/** Return the lanes of a model, from the engine to the end user, then the engine's own. */
export function lanesOf(model) {
  const least = (values) => values.reduce((low, value) => Math.min(low, value), Infinity);
  const mhz = (values) => [Math.min(least(values), largest(values) * 0.95), largest(values)];
  return [
    ...vantageLanes(model),
    ...stepLanes(model),
    lineLane('gpu', 'GPU clock', model.gpu_clock, ([low, high]) => (high ? `${count(Math.round(low))} to ${count(high)} MHz` : 'MHz'), mhz),
    lineLane('cpu', 'host CPUs', model.host_cpu, () => 'busy, 0 to 100 %', () => [0, 1]),
  ];
}

/** Place the lanes for this width. Returns {lanes: [{...lane, top, height}], left, compact, axis, labels, height, vantages_end}. */
export function layout(lanes, width) {
  const compact = width < COMPACT_BELOW_PX;
  let top = AXIS_PX + LABELS_PX + (compact ? 5 : 2);
  let vantages_end = top;
  const placed = lanes.map((lane) => {
    const title = compact ? TITLE_PX : 0;
    const height = lane.reason ? (compact ? 14 : 30) : lane.height;
    const own = { ...lane, top: top + title, height, title_top: top };
    top += title + height + GAP_PX;
    if (lane.kind === 'vantage') vantages_end = top - GAP_PX / 2;
    return own;
  });
  const axis = { top: 0, height: AXIS_PX };
  return { lanes: placed, compact, left: compact ? 0 : NAMES_PX, axis, labels: AXIS_PX + 2, height: top, vantages_end };
}

/** Write the name, the note and the unit of a lane; in a lane without data, the reason. */
export function drawNames(context, lane, placed, theme, width) {
  context.textAlign = 'left';
  context.textBaseline = 'top';
  if (placed.compact) drawTitleLine(context, lane, theme, width);
  else drawColumn(context, lane, placed.left, theme);
  if (lane.reason) {
    context.font = theme.small;
    context.fillStyle = theme.muted;
    context.fillText(cut(context, lane.reason, width - placed.left - 8), placed.left + 6, lane.top + (placed.compact ? 0 : 3));
  }
}

function drawColumn(context, lane, left, theme) {
  context.font = theme.bold;
  context.fillStyle = theme.text;
  context.fillText(cut(context, lane.title, left - 12), 2, lane.top + 1);
  context.font = theme.small;
  context.fillStyle = theme.muted;
  const rows = [lane.note, lane.unit].filter(Boolean).slice(0, lane.height < 44 ? 1 : 2);
  if (lane.reason) rows.length = 0;
  else if (lane.height < 44) rows[0] = lane.note && lane.kind === 'vantage' ? lane.note : lane.unit;
  rows.forEach((text, row) => context.fillText(cut(context, text, left - 12), 2, lane.top + 16 + 14 * row));
}

function drawTitleLine(context, lane, theme, width) {
  context.font = theme.bold;
  context.fillStyle = theme.text;
  context.fillText(lane.title, 2, lane.title_top);
  const used = context.measureText(lane.title).width + 10;
  if (lane.reason) return;
  context.font = theme.small;
  context.fillStyle = theme.muted;
  const rest = [lane.kind === 'vantage' ? lane.note : '', lane.unit].filter(Boolean).join(' · ');
  context.fillText(cut(context, rest, width - used), used, lane.title_top + 1);
}

/** Return the visible text, shortened with an ellipsis to this width in pixels. */
export function cut(context, received, width) {
  const text = visibleText(received);
  if (context.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return `${text.slice(0, length)}…`;
}

