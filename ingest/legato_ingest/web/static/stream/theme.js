// The colours and fonts of the canvases, read from the CSS custom properties of the page.
//
// The colours of causes are in ../causes.js and the same in both themes. This module draws nothing.

import { CAUSES } from '../causes.js';

const KIND_VARIABLES = ['--kind-other', '--kind-text', '--kind-reasoning', '--kind-tool', ...Array(4).fill('--kind-other')];

/** Return the theme that applies to an element. */
export function themeOf(element) {
  const style = getComputedStyle(element);
  const value = (name) => style.getPropertyValue(name).trim() || '#888888';
  const family = style.fontFamily || 'sans-serif';
  return {
    bg: value('--bg'),
    panel: value('--panel'),
    border: value('--border'),
    text: value('--text'),
    muted: value('--muted'),
    accent: value('--accent'),
    grid: value('--grid'),
    warn: value('--warn'),
    bad: value('--bad'),
    kinds: KIND_VARIABLES.map(value),
    // Decode, prefill, recompute, verification: the colours of the causes that these make.
    work: [value('--step-decode'), CAUSES.scheduling.color, CAUSES.kv_pressure.color, CAUSES.speculation.color],
    hold: CAUSES.consumer.color,
    kv: value('--lane-kv'),
    lines: [value('--lane-first'), value('--lane-second'), value('--accent'), value('--muted')],
    small: `11px ${family}`,
    bold: `600 12px ${family}`,
  };
}

/** Return a hex colour with an opacity. */
export function faded(color, opacity) {
  const digits = color.length === 4 ? [...color.slice(1)].map((digit) => digit + digit).join('') : color.slice(1, 7);
  const [red, green, blue] = [0, 2, 4].map((at) => parseInt(digits.slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${opacity})`;
}

/** Call `work` when the page's theme changes. Returns a function that ends this. */
export function watchTheme(work) {
  const observer = new MutationObserver(work);
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme'] });
  return () => observer.disconnect();
}

/** Fit a canvas to a size in CSS pixels, sharp on dense screens. Returns its context. */
export function fitted(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [wide, high] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== wide || canvas.height !== high) {
    [canvas.width, canvas.height] = [wide, high];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
