// The bar above a dashboard: variables, time range and refresh interval. What a user chooses goes into the URL; the bar runs no panel.

import { dropdown, element } from "./elements.js";
import { change, isRelative, momentOf, valuesOf } from "./location.js";
import { formatTime, two } from "./panels/units.js";
import { visibleText } from "./visible.js";

export const ALL = "$__all";
const RANGES = [["5m", "5 minutes"], ["15m", "15 minutes"], ["1h", "hour"], ["3h", "3 hours"], ["6h", "6 hours"], ["24h", "24 hours"], ["2d", "2 days"],
  ["7d", "7 days"], ["14d", "14 days"], ["30d", "30 days"], ["90d", "90 days"]];
const REFRESHES = ["", "5s", "10s", "30s", "1m", "5m", "15m"];

// The chosen values of each variable: those of the URL, else the dashboard's. `unknown`: the variables of which the store does not have the
// dashboard's value; they are at All, as in Grafana.
export function chosen(board, unknown) {
  const values = {};
  for (const variable of variablesOf(board)) {
    // An empty value has the rows of all, as links of alerts have for a service without a name.
    const given = valuesOf(variable.name).map((value) => (value === "" && variable.includeAll ? ALL : value));
    values[variable.name] = given.length ? given : unknown.has(variable.name) ? [ALL] : presetOf(variable);
  }
  return values;
}

export const presetOf = (variable) => [variable.current?.value ?? ""].flat();

export const variablesOf = (board) => board.templating?.list || [];

// A choice of values with a filter: of several, where "All" excludes the others, or of one. `options` returns the names, when the list is opened.
export function choice(variable, values, options, onChange) {
  const label = values.includes(ALL) ? "All" : values.join(", ") || "None";
  const list = element("div", { class: "options" });
  const made = dropdown("choice", label, list);
  made.querySelector("summary").setAttribute("aria-label", visibleText(`${variable.name}: ${label}`));
  made.addEventListener("toggle", async () => {
    if (!made.open || list.childElementCount) return;
    list.replaceChildren("loading …");
    try {
      drawOptions(list, variable, values, await options(), onChange);
    } catch (error) {
      list.replaceChildren(error.message);
    }
  });
  return field(variable.label || variable.name, made);
}

function drawOptions(list, variable, values, names, onChange) {
  const every = [...new Set([...values.filter((value) => value !== ALL), ...names])];
  const filter = element("input", { type: "search", placeholder: "Filter", "aria-label": `Filter ${variable.name}` });
  const apply = element("button", { type: "button" }, "Apply");
  const all = variable.includeAll ? [[ALL, "All"]] : [];
  const kind = variable.multi ? "checkbox" : "radio";
  const boxes = [...all, ...every.map((name) => [name, name])].map(([value, text]) =>
    box({ type: kind, name: variable.name }, value, text, values.includes(value)));
  list.replaceChildren(filter, ...boxes.map(({ label }) => label), apply);
  filter.addEventListener("input", () => {
    for (const { label } of boxes) label.hidden = !label.textContent.toLowerCase().includes(filter.value.toLowerCase());
  });
  list.onchange = ({ target }) => variable.multi && exclude(boxes, target);
  apply.addEventListener("click", () => {
    const kept = boxes.filter(({ input }) => input.checked).map(({ input }) => input.value);
    onChange(variable.name, kept.length ? kept : all.length ? [ALL] : values);
  });
  filter.focus();
}

function exclude(boxes, target) {
  if (!target.checked || target.type !== "checkbox") return;
  const isAll = target.value === ALL;
  for (const { input } of boxes) if ((input.value === ALL) !== isAll) input.checked = false;
}

function box(attributes, value, text, checked) {
  const input = element("input", attributes);
  input.value = value;
  input.checked = checked;
  return { input, label: element("label", {}, input, element("span", {}, text)) };
}

export function textBox(variable, values, onChange) {
  const input = element("input", { type: "text", spellcheck: "false" });
  input.value = values[0] === ALL ? "" : values[0] ?? "";
  input.addEventListener("change", () => onChange(variable.name, [input.value.trim()]));
  return field(variable.label || variable.name, input);
}

export function field(label, control) {
  const text = element("span", {}, label);
  if (control.tagName === "INPUT" || control.tagName === "SELECT") control.setAttribute("aria-label", label);
  return element("div", { class: "field" }, text, control);
}

// The time range: quick ranges, or two local times.
export function rangePicker(span, onChange) {
  const times = element("div", { class: "times" });
  for (const [range, name] of RANGES) {
    const button = element("button", { type: "button" }, `Last ${name}`);
    button.addEventListener("click", () => onChange(`now-${range}`, "now"));
    times.append(button);
  }
  const [from, to] = [span.from_ms, span.to_ms].map((ms) => {
    const input = element("input", { type: "datetime-local", step: "1" });
    input.value = inputTime(ms);
    const unedited = input.value;
    // An hour that the clocks repeat has two times of one text: a time that was not edited stays what it is.
    return { input, moment: () => (input.value === unedited ? ms : new Date(input.value).getTime()) };
  });
  const apply = element("button", { type: "button" }, "Apply");
  apply.addEventListener("click", () => {
    const [from_ms, to_ms] = [from, to].map(({ moment }) => moment());
    if (from_ms < to_ms) onChange(String(from_ms), String(to_ms));
    else from.input.setCustomValidity("The range needs two times, and must end after it begins."), from.input.reportValidity();
  });
  for (const { input } of [from, to]) input.addEventListener("input", () => from.input.setCustomValidity(""));
  times.append(field("From (local time)", from.input), field("To (local time)", to.input), apply);
  return field("Time range", dropdown("choice", rangeText(span), element("div", { class: "options" }, times)));
}

// A range in words. What moves with the time is relative, because the text stays while a dashboard is refreshed.
function rangeText(span) {
  const named = RANGES.find(([range]) => span.from === `now-${range}` && span.to === "now");
  if (named) return `Last ${named[1]}`;
  // In the hour that the clocks repeat, the end reads like the begin, or like a time before it.
  const zone = local(span.from_ms) < local(span.to_ms) ? () => "" : offset;
  const isValid = momentOf(span.from) < momentOf(span.to);
  const [from, to] = [[span.from, span.from_ms], [span.to, span.to_ms]].map(([given, ms]) => (isValid && isRelative(given) ? given : local(ms) + zone(ms)));
  return `${from} – ${to}`;
}

export function refreshPicker(current, onChange) {
  const select = element("select");
  for (const every of new Set([...REFRESHES, current])) {
    const option = element("option", { value: every }, every || "off");
    option.selected = every === current;
    select.append(option);
  }
  select.addEventListener("change", () => onChange(select.value));
  return field("Refresh", select);
}

export const setVariable = (name, values) => change({ [`var-${name}`]: values });

// The variables with chosen values and a query that depends on another variable.
export const dependentOn = (board, name) => variablesOf(board).filter((variable) =>
  valuesOf(variable.name).length && new RegExp(`\\$(${name}\\b|\\{${name}\\b)`).test(variable.query?.rawSql || ""));

// Local time to the second; fractions of a range are not shown.
const local = (ms) => formatTime(1_000 * Math.floor(ms / 1_000));
const offset = (ms) => {
  const minutes = -new Date(ms).getTimezoneOffset();
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return ` UTC${minutes < 0 ? "-" : "+"}${hours}${rest ? `:${two(rest)}` : ""}`;
};
const inputTime = (ms) => local(ms).replace(" ", "T");
