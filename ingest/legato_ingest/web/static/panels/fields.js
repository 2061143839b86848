// The settings of a field and what they make of a value: its text, its colour, its links.
//
// The settings are those of Grafana's fieldConfig: the defaults, then the overrides that match the field, in order. As in Grafana, a
// name matches the name of the column or the displayed one, and a regular expression the displayed one. This module draws nothing.

import { resolveColor } from './colors.js';
import { formatExact, formatNumber, formatTime } from './units.js';

const INSIDE = /^(?:Nullable|LowCardinality)\((.*)\)$/;

/** Return 'time', 'number', 'boolean', 'string' or 'other' for a ClickHouse type. */
export function kindOf(type) {
  let inner = String(type);
  for (let match = INSIDE.exec(inner); match; match = INSIDE.exec(inner)) inner = match[1];
  const aggregated = /^SimpleAggregateFunction\(\w+,\s*(.*)\)$/.exec(inner);
  if (aggregated) return kindOf(aggregated[1]);
  if (/^Date/.test(inner)) return 'time';
  if (/^(U?Int\d|Float|BFloat|Decimal)/.test(inner)) return 'number';
  if (/^Bool/.test(inner)) return 'boolean';
  return /^(String|FixedString|Enum|UUID|IPv)/.test(inner) ? 'string' : 'other';
}

/** Return whether a type is a day without a time of day. */
export function isDay(type) {
  return /(^|\()Date(32)?(\)|$)/.test(String(type));
}

/** Return a regular expression from Grafana's form "/…/flags", or null if it is not valid. */
export function toRegExp(text) {
  const match = /^\/(.*)\/([a-z]*)$/s.exec(text);
  try {
    return match ? new RegExp(match[1], match[2].replace('g', '')) : new RegExp(text);
  } catch {
    return null;
  }
}

function matches(matcher, name, column, kind) {
  if (matcher.id === 'byName') return [name, column].includes(matcher.options);
  if (matcher.id === 'byRegexp') return Boolean(toRegExp(String(matcher.options))?.test(name));
  if (matcher.id === 'byType') return matcher.options === kind;
  return matcher.id === 'byNames' && (matcher.options?.names || []).some((one) => one === name || one === column);
}

/** Return the settings of the field with this displayed name. `column`: the name of its column, where labels make another one of it. */
export function settingsOf(panel, name, type = '', column = name) {
  const defaults = panel.fieldConfig?.defaults || {};
  const settings = { ...defaults, custom: { ...(defaults.custom || {}) } };
  for (const override of panel.fieldConfig?.overrides || []) {
    if (!matches(override.matcher, name, column, kindOf(type))) continue;
    for (const { id, value } of override.properties) {
      if (id.startsWith('custom.')) settings.custom[id.slice('custom.'.length)] = value;
      else settings[id] = value;
    }
  }
  return settings;
}

const SPECIAL = {
  null: (value) => value === null || value === undefined,
  nan: (value) => Number.isNaN(value),
  'null+nan': (value) => value === null || value === undefined || Number.isNaN(value),
  true: (value) => value === true,
  false: (value) => value === false,
  empty: (value) => value === '',
};

function mapOne(mapping, value) {
  const options = mapping.options || {};
  if (mapping.type === 'value') return Object.hasOwn(options, String(value)) ? options[String(value)] : null;
  if (mapping.type === 'special') return Object.hasOwn(SPECIAL, options.match) && SPECIAL[options.match](value) ? options.result : null;
  if (mapping.type === 'range') return inRange(value, options) ? options.result : null;
  if (mapping.type === 'regex' && typeof value === 'string') return mapRegex(options, value);
  return null;
}

function inRange(value, { from, to }) {
  return typeof value === 'number' && value >= (from ?? -Infinity) && value <= (to ?? Infinity);
}

function mapRegex(options, value) {
  const pattern = toRegExp(options.pattern);
  if (!pattern?.test(value)) return null;
  const text = options.result?.text;
  return { ...options.result, text: text === undefined ? undefined : value.replace(pattern, text) };
}

/** Return the first mapping's result {text, color} for a value, or null. */
export function mapValue(settings, value) {
  for (const mapping of settings.mappings || []) {
    const result = mapOne(mapping, value);
    if (result) return result;
  }
  return null;
}

/** Return the steps of the thresholds in the field's own scale, in ascending order. `range`: [least, greatest] for percentages. */
export function thresholdSteps(settings, range = [0, 100]) {
  const { mode, steps } = settings.thresholds || {};
  const [least, greatest] = [settings.min ?? range[0], settings.max ?? range[1]];
  const toScale = (value) => (mode === 'percentage' ? least + (value / 100) * (greatest - least) : value);
  return (steps || []).map(({ value, color }) => ({ color, value: value === null || value === undefined ? null : toScale(value) }));
}

function thresholdColor(settings, value, range) {
  let color = null;
  for (const step of thresholdSteps(settings, range)) {
    if (step.value === null || (typeof value === 'number' && value >= step.value)) color = step.color;
  }
  return color;
}

/** Return the value's text without mappings: by its type and its unit. Null if there is no value. `exact`: the text of a rounded number. */
export function plainText(settings, value, type, exact) {
  if (value === null || value === undefined) return null;
  if (exact !== undefined && /^-?\d+$/.test(exact) && (settings.unit || 'none') === 'none') return formatExact(exact);
  if (kindOf(type) === 'time' && typeof value === 'number') return formatTime(value, { dateOnly: isDay(type) });
  if (typeof value === 'number') return formatNumber(value, settings.unit, { decimals: settings.decimals ?? undefined });
  if (Array.isArray(value)) return value.map((item) => (typeof item === 'object' ? JSON.stringify(item) : String(item))).join(', ');
  return typeof value === 'object' ? JSON.stringify(value) : String(value);
}

/** Return what a value looks like: {text, color, missing}. `color` is a CSS colour, or null without thresholds and mappings. */
export function display(settings, value, type, theme, range, exact) {
  const mapped = mapValue(settings, value);
  const text = mapped?.text ?? plainText(settings, value, type, exact);
  const fixedColor = settings.color?.mode === 'fixed' ? settings.color.fixedColor : null;
  const color = mapped?.color ?? fixedColor ?? thresholdColor(settings, value, range);
  const missing = text === null || text === '';
  return { text: missing ? settings.noValue ?? '–' : text, color: color ? resolveColor(color, theme) : null, missing };
}
