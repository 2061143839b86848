// Numbers as text: times, bytes, counts and shares, each with its unit. An unknown value is a dash.
//
// No more digits are written than are known. This module draws nothing.

const DASH = '–';
const NUMBER = new Intl.NumberFormat('en');

export const isKnown = (value) => value !== null && value !== undefined && !Number.isNaN(value);

/** Return how many more requests a verdict names than are `shown`. It names 16 at most. */
export const more = (ids, shown) => `${ids.length < 16 ? '' : 'at least '}${count(ids.length - shown)} more`;

/** Return a length of time in µs as `410 µs`, `23 ms`, `1.34 s` or `2 min 5 s`. */
export function duration(us) {
  if (!isKnown(us)) return DASH;
  const size = Math.abs(us);
  const sign = us < 0 ? '−' : '';
  if (size < 1e3) return `${sign}${Math.round(size)} µs`;
  if (size < 9950) return `${sign}${(size / 1e3).toFixed(1)} ms`;
  if (size < 999500) return `${sign}${Math.round(size / 1e3)} ms`;
  if (size < 99.95e6) return `${sign}${(size / 1e6).toFixed(2)} s`;
  const seconds = Math.round(size / 1e6);
  return `${sign}${NUMBER.format(Math.floor(seconds / 60))} min ${seconds % 60} s`;
}

/** Return a length of time to the microsecond, for tooltips: `1,234.567 ms`. */
export const exact = (us) => (isKnown(us) ? `${(us / 1e3).toLocaleString('en', { minimumFractionDigits: 3 })} ms` : DASH);

/** Return a moment of the axis with as many digits as a distance of `step_us` needs: `12.35 s`. */
export function moment(us, step_us = 1000) {
  const digits = Math.min(6, Math.max(0, Math.ceil(6 - Math.log10(step_us) - 1e-9)));
  const seconds = (us / 1e6).toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return `${/^-[0.]*$/.test(seconds) ? seconds.slice(1) : seconds.replace('-', '−')} s`;
}

export const count = (value) => (isKnown(value) ? NUMBER.format(value) : DASH);

/** Return bytes as `512 B`, `4.4 kB` or `1.2 MB`. */
export function bytes(value) {
  if (!isKnown(value)) return DASH;
  if (value < 1e3) return `${value} B`;
  return value < 1e6 ? `${(value / 1e3).toFixed(1)} kB` : `${(value / 1e6).toFixed(1)} MB`;
}

/** Return a share as `98 %`; never 100 % for less than all, never 0 % for more than none. */
export function share(value) {
  if (!isKnown(value)) return DASH;
  const percent = 100 * value;
  if (percent > 99 && percent < 100) return `${Math.min(percent, 99.9).toFixed(1)} %`;
  return percent > 0 && percent < 1 ? `${Math.max(percent, 0.1).toFixed(1)} %` : `${Math.round(percent)} %`;
}

/** Return a number with its noun: `1 stall`, `3 stalls`. */
export const some = (value, noun) => `${count(value)} ${noun}${value === 1 ? '' : 's'}`;
