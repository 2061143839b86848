// One sentence about the chosen stall: how long, how much of it the main cause took, and the event behind it with its numbers.
//
// The numbers are those of the root-cause step in the engine's lanes. It judges nothing, and leaves out what is not known.

import { causeOf } from '../causes.js';
import { count, duration, more, some } from './format.js';

// Verdicts that name no event, causes with an event in a step of the engine, and causes that make a step longer than its work explains.
const UNNAMED = new Set(['unknown', 'mixed']);
const IN_STEP = new Set(['scheduling', 'kv_pressure', 'host', 'gpu_clock']);
const SLOW = new Set(['host', 'gpu_clock']);

/** Return the sentence, or "" for a stall without a verdict. */
export function because(stall, model) {
  if (!stall.cause) return '';
  const { meaning, label } = causeOf(stall.cause);
  if (UNNAMED.has(stall.cause)) return `${duration(stall.gap_us)}: ${label}.`;
  const charged = stall.parts_us[stall.cause] ?? 0;
  const part = charged < 0.995 * stall.gap_us ? `${duration(charged)} of it because` : 'because';
  const lead = charged ? `${duration(stall.gap_us)}, ${part}` : `${duration(stall.gap_us)}:`;
  const event = IN_STEP.has(stall.cause) ? eventOf(stall, stepOf(stall, model.engine)) : '';
  return `${lead} ${meaning || label}${event ? `. ${event}` : ''}.`;
}

// The place of the root-cause step. The lanes have one engine, and an engine that restarted counts from the beginning again, so the step
// must be of the stall's engine and near the stall.
function stepOf(stall, { id, steps }) {
  if (!steps || stall.culprit_step === null || stall.engine !== id) return null;
  const margin = 1e6;
  for (let place = 0; place < steps.length; place++) {
    const isNear = steps.end[place] >= stall.start_us - margin && steps.start[place] <= stall.end_us + margin;
    if (isNear && steps.step[place] === stall.culprit_step) return { steps, place };
  }
  return null;
}

function eventOf(stall, found) {
  if (!found) return '';
  const [prompt, recomputed, preempted, decoding] = ['prefill_tokens', 'recompute_tokens', 'preempted', 'decode_requests'].map((name) => known(found, name));
  const work = [];
  if (prompt) work.push(`prefilled ${some(prompt, 'prompt token')}${owners(stall, 'scheduling')}`);
  if (recomputed) work.push(`recomputed ${some(recomputed, 'token')}${owners(stall, 'kv_pressure')}`);
  if (preempted) work.push(`preempted ${some(preempted, 'request')}`);
  const lead = `Step ${count(stall.culprit_step)} took ${duration(found.steps.duration[found.place])}`;
  const beside = decoding === null ? '' : some(decoding, 'decoding request');
  if (work.length) return `${lead}: it ${work.join(' and ')}${beside && `, beside ${beside}`}`;
  if (!SLOW.has(stall.cause)) return '';
  return `${lead}${beside && ` with ${beside}`}${prompt === 0 ? `${beside ? ' and' : ' with'} no prefill` : ''}`;
}

// A number of the step, or null if it is not known: the column is missing, or has -1.
function known({ steps, place }, name) {
  const value = steps[name]?.[place] ?? -1;
  return value < 0 ? null : value;
}

// The requests of the root-cause step are those of its cause: prompts for `scheduling`, preempted or recomputed ones for `kv_pressure`.
function owners(stall, cause) {
  const ids = stall.culprit_responses;
  if (!ids.length || stall.cause !== cause) return '';
  return ids.length > 2 ? ` of ${ids.slice(0, 2).join(', ')} and ${more(ids, 2)}` : ` of ${ids.join(' and ')}`;
}
