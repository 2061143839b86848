// The tooltip of the timeline: the exact figures at the pointer, by lane.
//
// It returns and shows text only; all text is set through textContent.

import { causeOf } from '../causes.js';
import { el } from '../panels/dom.js';
import { bytes, count, duration, exact, isKnown, moment, share } from './format.js';
import { KINDS, lastNotAbove, lowerBound, WORK_NAMES } from './model.js';

const NEAR_PX = 7;

function chunkLines({ vantage }, at, viewport) {
  const next = lowerBound(vantage.at, at);
  const near = (NEAR_PX * viewport.span) / viewport.width;
  const [before, after] = [at - (vantage.at[next - 1] ?? -Infinity), (vantage.at[next] ?? Infinity) - at];
  if (Math.min(before, after) > near) return gapLines(vantage, next);
  const last = after < before ? next : next - 1;
  const first = lowerBound(vantage.at, vantage.at[last]);
  const rest = lastNotAbove(vantage.at, vantage.at[last]) - first;
  const lines = [`chunk ${count(first + 1)} of ${count(vantage.at.length)}, ${KINDS[vantage.kind[first]] || 'other'}`];
  lines.push(`at ${moment(vantage.at[first], 1)}`);
  if (first > 0) lines.push(`${exact(vantage.at[first] - vantage.at[first - 1])} after the chunk before`);
  if (vantage.bytes) lines.push(bytes(vantage.bytes[first]));
  if (vantage.tokens) lines.push(`${count(vantage.tokens[first])} tokens`);
  if (vantage.hold && vantage.hold[first]) lines.push(`held by the application for ${exact(vantage.hold[first])}`);
  if (rest > 0) lines.push(`${count(rest)} more arrived at the same time`);
  return lines;
}

function gapLines(vantage, next) {
  if (next === 0) return vantage.at.length ? [`first chunk at ${moment(vantage.at[0], 1)}`] : [];
  if (next === vantage.at.length) return [`no chunk after ${moment(vantage.at[next - 1], 1)}`, `outcome: ${vantage.outcome}`];
  return [`no chunk for ${exact(vantage.at[next] - vantage.at[next - 1])}`];
}

function stepLines({ steps }, at) {
  const step = lowerBound(steps.end, at);
  if (step >= steps.length || steps.start[step] > at) return ['no step'];
  const value = (name) => (steps[name] && steps[name][step] >= 0 ? steps[name][step] : null);
  const lines = [`step ${count(steps.step[step])}`, `${exact(steps.duration[step])} long, ended at ${moment(steps.end[step], 1)}`];
  const named = { 'requests decoded': 'decode_requests', 'prompt tokens': 'prefill_tokens', 'tokens computed again': 'recompute_tokens' };
  for (const [words, name] of Object.entries(named)) if (value(name) !== null) lines.push(`${count(value(name))} ${words}`);
  if (value('draft_tokens')) lines.push(`${count(value('accepted_tokens'))} of ${count(value('draft_tokens'))} drafted tokens accepted`);
  if (value('preempted')) lines.push(`${count(value('preempted'))} preemptions reported`);
  const work = WORK_NAMES.filter((_, each) => steps.shares[4 * step + each] > 0).join(', ');
  if (steps.late_us[step] >= 1000) lines.push(`recorded ${duration(steps.late_us[step])} after its end`);
  return [...lines, work];
}

function loadLines({ steps, kind }, at) {
  const step = lastNotAbove(steps.end, at);
  if (step < 0) return [];
  const value = (name) => (steps[name] && steps[name][step] >= 0 ? steps[name][step] : null);
  const after = `after step ${count(steps.step[step])}`;
  if (kind === 'kv') return [`${isKnown(value('kv_used_ppm')) ? share(value('kv_used_ppm') / 1e6) : '–'} of the KV cache in use`, after];
  return [`${count(value('running'))} running`, `${count(value('waiting'))} waiting`, after];
}

function sampleLines({ series, kind }, at) {
  return series.map((one) => {
    const next = Math.min(lowerBound(one.at, at), one.at.length - 1);
    const point = next > 0 && at - one.at[next - 1] < one.at[next] - at ? next - 1 : next;
    const value = kind === 'cpu' ? `${share(one.value[point])} busy` : `${count(Math.round(one.value[point]))} MHz`;
    return `${one.name ? `${one.name}: ` : ''}${value}, sampled at ${moment(one.at[point], 1e4)}`;
  });
}

const BY_KIND = { vantage: chunkLines, steps: stepLines, kv: loadLines, load: loadLines, gpu: sampleLines, cpu: sampleLines };

/** Return the lines of text at a place: the moment, the lane, its figures, and the stall. */
export function linesAt(lane, at, stalls, viewport) {
  const lines = [moment(at, viewport.span / viewport.width)];
  if (lane) lines.push(lane.title, ...(lane.reason ? [lane.reason] : BY_KIND[lane.kind](lane, at, viewport)));
  const stall = stalls.find((each) => each.start_us <= at && at <= each.end_us);
  if (stall) lines.push(`stall of ${exact(stall.gap_us)}: ${causeOf(stall.cause).label}${stall.confidence ? `, ${stall.confidence}` : ''}`);
  return lines;
}

/** A tooltip inside `parent`, which is positioned. */
export class Tooltip {
  constructor(parent) {
    this.parent = parent;
    this.element = el('div', 'st-tooltip', { hidden: true, 'aria-hidden': 'true' });
    parent.append(this.element);
  }

  hide() {
    this.element.hidden = true;
  }

  show(lines, x, y) {
    this.element.replaceChildren(...lines.map((text, number) => el('div', number ? '' : 'st-tooltip-head', { text })));
    this.element.hidden = false;
    const room = this.parent.clientWidth - this.element.offsetWidth - 4;
    const left = x + 14 > room ? x - this.element.offsetWidth - 14 : x + 14;
    this.element.style.left = `${Math.max(4, Math.min(left, room))}px`;
    this.element.style.top = `${Math.max(2, Math.min(y + 14, this.parent.clientHeight - this.element.offsetHeight - 4))}px`;
  }
}
