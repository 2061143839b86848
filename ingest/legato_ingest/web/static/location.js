// The state of the page in its URL: time range, refresh interval and variables, in Grafana's names. It draws nothing.

const UNITS_MS = { s: 1e3, m: 6e4, h: 36e5, d: 864e5, w: 6048e5, M: 30 * 864e5, y: 365 * 864e5 };
const RELATIVE = /^now(?:-(\d+)([smhdwMy]))?$/;

export const isRelative = (text) => RELATIVE.test(text);

// Milliseconds since the epoch of "now-6h", of digits, or of an ISO time; NaN for anything else.
export function momentOf(text, now = Date.now()) {
  const relative = RELATIVE.exec(text);
  if (relative) return relative[1] ? now - Number(relative[1]) * UNITS_MS[relative[2]] : now;
  return /^\d+$/.test(text) ? Number(text) : Date.parse(text);
}

export const durationOf = (text) => {
  const found = /^(\d+)([smhdwMy])$/.exec(text || "");
  return found ? Number(found[1]) * UNITS_MS[found[2]] : 0;
};

export const parameters = () => new URLSearchParams(window.location.search);

export function valuesOf(name) {
  return parameters().getAll(`var-${name}`);
}

// A part of the address; as it is where it is no text.
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// The dashboard of the address: "/" is the first one, and "/blame" another name of the attribution.
export function boardAt() {
  const [kind, uid] = window.location.pathname.split("/").filter(Boolean);
  if (kind === undefined) return "legato-streams";
  if (kind === "blame") return "legato-attribution";
  return kind === "d" ? decoded(uid ?? "") : "";
}

// The time range and variables of the address, to be carried over to another page.
export function kept() {
  const pairs = [...parameters()].filter(([name]) => ["from", "to", "refresh"].includes(name) || name.startsWith("var-"));
  const text = new URLSearchParams(pairs.filter(([name]) => name !== "var-stream")).toString();
  return text && `?${text}`;
}

// The address on this page of one that a dashboard links to: a stream has a page here, which Grafana has not.
export function pageUrl(url) {
  const parsed = new URL(url, window.location.origin);
  const stream = parsed.searchParams.get("var-stream");
  if (parsed.pathname.startsWith("/d/legato-stream/") && stream) return `/stream/${encodeURIComponent(stream)}`;
  return url;
}

// Replace parameters of the URL; a value of null removes one. `push`: as a new entry of the history.
export function change(changes, { push = true } = {}) {
  const query = parameters();
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const each of value === null ? [] : [value].flat()) query.append(name, each);
  }
  const text = query.toString();
  const url = window.location.pathname + (text ? `?${text}` : "");
  window.history[push ? "pushState" : "replaceState"](null, "", url);
  window.dispatchEvent(new Event("statechange"));
}

export function go(url) {
  window.history.pushState(null, "", url);
  window.dispatchEvent(new PopStateEvent("popstate"));
}

// The range of the URL or of the dashboard, as text and in ms. A range that ends before it begins is the last hour before its end.
export function rangeOf(defaults) {
  const query = parameters();
  const from = query.get("from") || defaults.from;
  const to = query.get("to") || defaults.to;
  const now = Date.now();
  let to_ms = momentOf(to, now);
  if (!Number.isFinite(to_ms)) to_ms = now;
  let from_ms = momentOf(from, now);
  if (!(from_ms < to_ms)) from_ms = to_ms - UNITS_MS.h;
  return { from, to, from_ms: Math.max(0, Math.floor(from_ms)), to_ms: Math.ceil(to_ms) };
}

const STEPS_MS = [1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5, 6048e5];

// The interval between two points: about one per two pixels, at least the panel's own minimum.
export function intervalOf(span, width_px, least_ms) {
  const wanted = Math.max((span.to_ms - span.from_ms) / Math.max(60, width_px / 2), least_ms || 1e3);
  return STEPS_MS.find((step) => step >= wanted) || STEPS_MS.at(-1);
}
