// One sentence about the chosen stall: how long, how much of it the main cause took, and the event behind it with its numbers.
//
// The numbers are those of the root-cause step in the engine's lanes. It judges nothing.

import { causeOf } from '../causes.js';
import { count, duration, some } from './format.js';

// Causes that make a step longer than its work explains.
const SLOW = new Set(['host', 'gpu_clock']);

/** Return the sentence, or "" for a stall without a verdict. */
export function because(stall, model) {
  if (!stall.cause) return '';
  const { meaning, label } = causeOf(stall.cause);
  const charged = stall.parts_us[stall.cause] ?? 0;
  const part = charged < 0.995 * stall.gap_us ? `${duration(charged)} of it because` : 'because';
  const lead = charged ? `${duration(stall.gap_us)}, ${part}` : `${duration(stall.gap_us)}:`;
  const event = eventOf(stall, stepOf(stall, model.engine.steps));
  return `${lead} ${meaning || label}${event ? `. ${event}` : ''}.`;
}

// The place of the root-cause step. An engine that restarted counts from the beginning again, so the step must also be near the stall.
function stepOf(stall, steps) {
  if (!steps || stall.culprit_step === null) return null;
  const margin = 1e6;
  for (let place = 0; place < steps.length; place++) {
    const isNear = steps.end[place] >= stall.start_us - margin && steps.start[place] <= stall.end_us + margin;
    if (isNear && steps.step[place] === stall.culprit_step) return { steps, place };
  }
  return null;
}

function eventOf(stall, found) {
  if (!found) return '';
  const value = (name) => Math.max(found.steps[name]?.[found.place] ?? 0, 0);
  const [prompt, recomputed, preempted] = ['prefill_tokens', 'recompute_tokens', 'preempted'].map(value);
  const work = [];
  if (prompt) work.push(`prefilled ${some(prompt, 'prompt token')}${owners(stall)}`);
  if (recomputed) work.push(`recomputed ${some(recomputed, 'token')}${prompt ? '' : owners(stall)}`);
  if (preempted) work.push(`preempted ${some(preempted, 'request')}`);
  const took = duration(found.steps.duration[found.place]);
  const decoding = some(value('decode_requests'), 'decoding request');
  if (!work.length) return SLOW.has(stall.cause) ? `Step ${count(stall.culprit_step)} took ${took} with ${decoding} and no prefill` : '';
  return `Step ${count(stall.culprit_step)} took ${took}: it ${work.join(' and ')}, beside ${decoding}`;
}

function owners(stall) {
  const ids = stall.culprit_responses;
  if (!ids.length) return '';
  return ids.length > 2 ? ` of ${ids.slice(0, 2).join(', ')} and ${count(ids.length - 2)} more` : ` of ${ids.join(' and ')}`;
}
