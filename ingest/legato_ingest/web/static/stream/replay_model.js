// What the replay shows: the content of the stream at its times, the same without one cause, and what a reader had at a reading rate.
//
// "Without a cause": each chunk after a stall arrives earlier by the time that the stalls so far were charged to the cause; all else stays.
// It computes in typed arrays and draws nothing.

import { isContent } from './model.js';

const BYTES_PER_WORD = 6;
const TEXT = 1;

/** Return the content of a vantage: {at, bytes, isText}, times in µs. Where sizes are unknown, each chunk counts as one word. */
export function contentOf(vantage) {
  const chosen = [];
  for (let chunk = 0; chunk < vantage.at.length; chunk++) if (isContent(vantage.kind[chunk])) chosen.push(chunk);
  return {
    at: Float64Array.from(chosen, (chunk) => vantage.at[chunk]),
    bytes: Float64Array.from(chosen, (chunk) => (vantage.bytes ? vantage.bytes[chunk] : BYTES_PER_WORD)),
    isSized: Boolean(vantage.bytes),
    isText: Uint8Array.from(chosen, (chunk) => Number(vantage.kind[chunk] === TEXT)),
  };
}

/** Return the cause to leave out: that of the stall, or its largest part beyond the healthy step; "" if it has none. */
export function removable(stall) {
  if (!stall || !stall.cause) return '';
  if (stall.parts_us[stall.cause]) return stall.cause;
  const parts = Object.entries(stall.parts_us).filter(([name]) => name !== 'base').sort(([, one], [, other]) => other - one);
  return parts.length ? parts[0][0] : '';
}

/** Return the content without a cause: {at, bytes, isText, removed_us, stalls}. `stalls`: those of the replayed vantage. */
export function withoutCause(content, stalls, cause) {
  const charged = (stall) => Math.min(stall.parts_us[cause] || 0, stall.gap_us);
  const ends = stalls.map((stall) => ({ at: stall.end_us, us: charged(stall) })).filter(({ us }) => us > 0);
  ends.sort((one, other) => one.at - other.at);
  const at = new Float64Array(content.at.length);
  let [next, removed] = [0, 0];
  for (let chunk = 0; chunk < at.length; chunk++) {
    while (next < ends.length && ends[next].at <= content.at[chunk] + 1) removed += ends[next++].us;
    at[chunk] = content.at[chunk] - removed;
  }
  return { ...content, at, removed_us: removed, stalls: next };
}

/**
 * Return what a reader at this rate had: {waits: [{from, to}], waited_us, finished: times at which each chunk is read}.
 * The reader starts with the first text, reads at the rate while there is text, and waits otherwise.
 */
export function readerOf(content, words_per_second) {
  const us_per_byte = 1e6 / (BYTES_PER_WORD * words_per_second);
  const finished = new Float64Array(content.at.length);
  const waits = [];
  let [free, waited] = [-1, 0];
  for (let chunk = 0; chunk < finished.length; chunk++) {
    if (content.isText[chunk]) {
      if (free >= 0 && content.at[chunk] > free) {
        waits.push({ from: free, to: content.at[chunk] });
        waited += content.at[chunk] - free;
      }
      free = Math.max(free, content.at[chunk]) + content.bytes[chunk] * us_per_byte;
    }
    finished[chunk] = free;
  }
  return { waits, waited_us: waited, finished };
}
