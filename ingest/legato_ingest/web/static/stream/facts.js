// The head of the page: what the stream is, its figures, notes on the record, and the hidden table of stalls.
//
// Unknown figures are a dash, never 0. All text is set through textContent.

import { causeOf } from '../causes.js';
import { el } from '../panels/dom.js';
import { bytes, count, duration, moment, some } from './format.js';

const ERRORS = new Set(['timeout', 'upstream_error', 'engine_abort', 'abandoned']);

function fact(name, value, className = '') {
  return el('div', 'st-fact', {}, [el('dt', '', { text: name }), el('dd', className, { text: value })]);
}

function judgement(felt) {
  if (felt.good === null) return felt.ended ? '–' : 'not ended';
  return felt.good ? 'good' : 'not good';
}

/** Return the head: title, identity, and the figures at the vantage nearest to the end user. */
export function head(model) {
  const { view, felt } = model;
  // A trace can have several clients; the figures are those of one.
  const stalls = model.stalls.filter((stall) => model.vantages[stall.vantage] === felt || model.vantages[stall.vantage].vantage !== felt.vantage);
  const stalled = stalls.reduce((sum, stall) => sum + stall.gap_us, 0);
  const outcome = [felt.outcome, felt.finish_reason, felt.error_type].filter(Boolean).join(' · ');
  const model_name = felt.model || felt.response_model || 'unknown model';
  return el('header', 'st-head', {}, [
    el('h1', '', { text: `Stream of ${model_name}` }),
    el('p', 'st-identity', {}, [
      el('span', '', { text: view.service || 'unknown service' }), el('code', '', { text: view.trace }),
      ...(view.response_id ? [el('code', '', { text: view.response_id })] : []),
      el('time', '', { datetime: view.start, text: view.start.replace('T', ' ').replace('Z', ' UTC') }),
    ]),
    el('dl', 'st-facts', { 'aria-label': `Figures at the ${felt.vantage}` }, [
      fact('outcome', outcome || '–', ERRORS.has(felt.outcome) ? 'st-bad' : ''),
      fact('by its objective', judgement(felt), felt.good === 0 ? 'st-bad' : felt.good ? 'st-good' : ''),
      fact('duration', duration(felt.duration_us)),
      fact('first token', duration(felt.ttft_us)),
      fact('stalls', stalls.length ? `${count(stalls.length)}, ${duration(stalled)} in all` : view.gaps_known ? '0' : '–'),
      fact('longest gap', duration(felt.gap_max_us)),
      fact('median gap', duration(felt.gap_p50_us)),
      fact('chunks', count(felt.chunks)),
      fact('content', bytes(felt.content_bytes)),
      fact('tokens in / out', `${count(felt.input_tokens)} / ${count(felt.output_tokens)}`),
    ]),
    ...notes(model).map((words) => el('p', 'st-note', { text: words })),
  ]);
}

const APART = 'The clocks of these vantages differ or are unknown: the vantages of a response are drawn from a common start.';
const RUNNING = 'This stream runs, or its end was not recorded: these are its newest recorded chunks.';

function notes({ view, vantages }) {
  const out = [];
  if (!view.one_clock) out.push(APART);
  if (view.vantages_left_out) out.push(`Not shown: ${view.is_cut ? 'at least ' : ''}${some(view.vantages_left_out, 'more recording')} of this trace.`);
  if (vantages.some((vantage) => !vantage.ended)) out.push(RUNNING);
  for (const { chunks_dropped: dropped, vantage } of vantages) {
    if (dropped) out.push(`${some(dropped, 'chunk')} beyond the limit of the ${vantage} have no times.`);
  }
  return out;
}

/** Return one sentence that says what the canvas shows. */
export function summary(model) {
  const names = model.vantages.map((vantage) => vantage.vantage).join(', ');
  const longest = model.stalls.reduce((most, stall) => (most && most.gap_us >= stall.gap_us ? most : stall), null);
  const words = ({ gap_us: gap, start_us: start, cause }) => `lasted ${duration(gap)} from ${moment(start)}: ${causeOf(cause).label}`;
  const stalls = longest ? `${some(model.stalls.length, 'stall')}; the longest ${words(longest)}` : model.view.gaps_known ? 'no stall' : 'its gaps are not known';
  const steps = model.engine.steps ? `, ${count(model.engine.steps.length)} engine steps` : '';
  return `Chunks of the stream at ${names} over ${duration(model.end)}${steps}; ${stalls}. A table of the stalls follows.`;
}

/** Return the table of stalls for readers of the page who do not see the canvas. */
export function stallTable(model) {
  const names = ['Start', 'Length', 'Vantage', 'Cause', 'Confidence', 'Within'];
  const rows = model.stalls.map((stall) => [
    moment(stall.start_us), duration(stall.gap_us), model.vantages[stall.vantage].vantage, causeOf(stall.cause).label,
    stall.confidence || '–', stall.cause ? duration(stall.error_us) : '–',
  ]);
  const table = el('table', '', {}, [
    el('caption', '', { text: rows.length ? 'Stalls of this stream' : model.view.gaps_known ? 'This stream has no stalls' : 'The gaps of this stream are not known' }),
    el('thead', '', {}, [el('tr', '', {}, names.map((text) => el('th', '', { scope: 'col', text })))]),
    el('tbody', '', {}, rows.map((cells) => el('tr', '', {}, cells.map((text) => el('td', '', { text }))))),
  ]);
  return el('div', 'hidden-visually', {}, [table]);
}
