// Requests to the server, and results as frames. It draws nothing and keeps no state.

import { kindOf } from "./panels/fields.js";
import { visibleText } from "./visible.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(visibleText(message));
    this.status = status;
  }
}

export async function fetchJson(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("legato serve does not answer: is it running?", 0);
  }
  const text = await response.text();
  let content;
  try {
    content = JSON.parse(text);
  } catch {
    throw new ApiError(`the reply is not JSON (status ${response.status})`, response.status);
  }
  if (!response.ok) throw refused(content.error || `status ${response.status}`, response.status);
  return content;
}

// A session can end while a page is open: the page then shows the login, whichever request noticed it.
function refused(message, status) {
  if (status === 401) window.dispatchEvent(new CustomEvent("loginneeded", { detail: message }));
  return new ApiError(message, status);
}

export const postJson = (path, body, signal) =>
  fetchJson(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

// A query of a dashboard as a frame: {columns: [{name, type, values}], rows}.
export async function queryFrame(query, signal) {
  return frameOf(await postJson("/api/query", query, signal));
}

export function frameOf(result) {
  const columns = result.meta.map(({ name, type }) => ({ name, type, values: converted(result.data[name] ?? [], type) }));
  return { columns, rows: result.rows };
}

const OTHER_ZONE = /DateTime[^']*'(?!UTC')/;

// Times as ms since the epoch, and numbers that JSON carries as text as numbers.
function converted(values, type) {
  const kind = kindOf(type);
  // Times of another zone than UTC stay as ClickHouse writes them.
  if (kind === "time" && !OTHER_ZONE.test(type)) return values.map((value) => (value === null ? null : moment(value)));
  if (kind === "number") return values.map((value) => (typeof value === "string" ? Number(value) : value));
  return values;
}

// ClickHouse writes UTC as 2026-01-31 12:00:00.123.
const moment = (text) => Date.parse(text.length === 10 ? `${text}T00:00:00Z` : `${text.replace(" ", "T").slice(0, 23)}Z`);
