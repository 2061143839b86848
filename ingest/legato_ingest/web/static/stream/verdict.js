// The verdict of the chosen stall in words: cause, share, confidence, parts, evidence, excluded causes, error bound, and links.
//
// It judges nothing: all statements come from the store. All text is set through textContent.

import { causeOf } from '../causes.js';
import { el, swatch as mark } from '../panels/dom.js';
import { because } from './because.js';
import { count, duration, moment, more, share, some } from './format.js';

const RUNBOOK = '/d/legato-runbook/runbook';
const FIRST_SHOWN = 8;
const PART_SHOWN = 0.005;

const text = (tag, className, words) => el(tag, className, { text: words });

const swatch = (color) => mark(color, 'st-swatch');

function partsBar(stall) {
  const sum = Object.values(stall.parts_us).reduce((total, us) => total + us, 0) || 1;
  const parts = Object.entries(stall.parts_us).sort(([, one], [, other]) => other - one);
  const bar = el('div', 'st-parts', { 'aria-hidden': 'true' }, parts.map(([name, us]) => {
    const piece = el('span');
    piece.style.flexGrow = String(us / sum);
    piece.style.backgroundColor = causeOf(name).color;
    return piece;
  }));
  const rows = parts.filter(([, us]) => us >= PART_SHOWN * sum).map(([name, us]) =>
    el('li', '', {}, [swatch(causeOf(name).color), `${causeOf(name).label} ${duration(us)} (${share(us / sum)})`]));
  const small = parts.length - rows.length;
  if (small) rows.push(text('li', 'st-muted', `${some(small, 'smaller part')}`));
  if (stall.caught_up_us > 0) rows.push(text('li', 'st-muted', `less ${duration(stall.caught_up_us)} that the delayed stream caught up`));
  return [bar, el('ul', 'st-part-list', {}, rows)];
}

function stepWords(stall) {
  const words = [];
  if (stall.step_first !== null) {
    const [first, last] = [count(stall.step_first), count(stall.step_last)];
    words.push(first === last ? `Engine step ${first}.` : `Engine steps ${first} to ${last}.`);
  }
  if (stall.culprit_step !== null) words.push(`Root cause: step ${count(stall.culprit_step)}, ${duration(stall.culprit_us)} of the cause.`);
  return words;
}

function headline(stall) {
  const { color, label } = causeOf(stall.cause);
  const lead = el('p', 'st-verdict-lead', {}, [swatch(color), el('strong', '', { text: label })]);
  const charged = ` — ${share(Math.min(stall.share, 1))} of the time beyond a healthy step. Confidence: `;
  if (stall.cause) lead.append(charged, text('strong', '', stall.confidence));
  return lead;
}

function section(title, items) {
  const rows = items.map((each) => (each.nodeType ? each : text('li', '', each)));
  return rows.length ? [text('h4', '', title), el('ul', 'st-list', {}, rows)] : [];
}

function excluded(stall) {
  return stall.excluded.map(({ cause, reason }) =>
    el('li', '', {}, [swatch(causeOf(cause).color), el('span', '', { text: `${causeOf(cause).label}: ${reason}` })]));
}

function sameStep(stall, href) {
  const link = ({ trace, gap_us: gap }) =>
    el('li', '', {}, [el('a', 'st-id', { href: href(`/stream/${trace}`), text: trace.slice(0, 12), title: trace }), ` ${duration(gap)}`]);
  const shown = stall.same_step.slice(0, FIRST_SHOWN).map(link);
  const rest = stall.same_step.slice(FIRST_SHOWN).map(link);
  if (!shown.length) return [];
  const number = `${stall.same_step_more ? 'more than ' : ''}${some(stall.same_step.length, 'other stream')}`;
  const out = [text('h4', '', `Stalled by the same step: ${number}`), el('ul', 'st-streams', {}, shown)];
  if (rest.length) out.push(el('details', '', {}, [text('summary', '', `${count(rest.length)} more`), el('ul', 'st-streams', {}, rest)]));
  return out;
}

function bound(stall) {
  if (!stall.cause) return 'This gap has no verdict: it is too recent, or nothing was recorded that could explain it.';
  const missing = stall.missing.length ? ` Not recorded: ${stall.missing.join(', ')}.` : '';
  return `Each part is right to within ${duration(stall.error_us)}.${missing}`;
}

/** Show the verdict of a stall in `element`. `on`: {choose(number), show(number)}. */
export function showVerdict(element, model, number, { href, on }) {
  const stall = model.stalls[number];
  if (!stall) return element.replaceChildren(text('h3', '', 'Why it stalled'), text('p', 'st-muted', noStall(model)));
  const vantage = model.vantages[stall.vantage];
  const button = (words, to) =>
    el('button', '', { type: 'button', text: words, disabled: !model.stalls[to], onclick: () => on.choose(to) });
  const end = stall.open ? 'and had not ended' : `to ${moment(stall.end_us)}`;
  return element.replaceChildren(
    el('div', 'st-verdict-head', {}, [
      text('h3', '', `Stall ${number + 1} of ${model.stalls.length}: ${duration(stall.gap_us)}`),
      el('div', 'st-buttons', {}, [
        button('Previous', number - 1), button('Next', number + 1),
        el('button', '', { type: 'button', text: 'Zoom to it', onclick: () => on.show(number) }),
      ]),
    ]),
    text('p', 'st-muted', `At the ${vantage.vantage} (${vantage.service}), from ${moment(stall.start_us)} ${end}.`),
    ...(stall.cause ? [text('p', 'st-because', because(stall, model))] : []),
    headline(stall),
    ...(stall.cause ? partsBar(stall) : []),
    ...section('Evidence', [...stepWords(stall), ...stall.evidence, ...culprits(stall)]),
    ...section('Excluded', excluded(stall)),
    text('p', 'st-muted', bound(stall)),
    ...(stall.cause ? [runbook(stall, href)] : []),
    ...sameStep(stall, href),
  );
}

const runbook = (stall, href) =>
  el('p', '', {}, [el('a', '', { href: href(RUNBOOK), text: `Runbook: what to do about ${causeOf(stall.cause).label}` })]);

function culprits(stall) {
  const ids = stall.culprit_responses;
  if (!ids.length) return [];
  return [`Requests behind the root cause: ${ids.slice(0, 4).join(', ')}${ids.length > 4 ? ` and ${more(ids, 4)}` : ''}.`];
}

function noStall(model) {
  if (model.view.gaps_known) return 'No gap of this stream was a stall.';
  const isExpired = model.vantages.some((vantage) => vantage.timeline === 'expired');
  return isExpired ? 'Its timeline is no longer stored, and its stalls have no verdict.' : 'No vantage recorded the times of its chunks, so no gap is known.';
}
