// Requests to the server, and results as frames. It draws nothing and keeps no state.

import { kindOf } from "./panels/fields.js";
import { visibleText } from "./visible.js";

export class ApiError extends Error {
  constructor(message, status) {
    super(visibleText(message));
    this.status = status;
  }
}

export async function fetchJson(path, options = {}, parse = JSON.parse) {
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
    content = parse(text);
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

export const postJson = (path, body, signal, parse) =>
  fetchJson(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal }, parse);

// A query of a dashboard as a frame: {columns: [{name, type, values, exact}], rows}. `exact`: by row, the text of a number that is rounded.
export async function queryFrame(query, signal) {
  return frameOf(await postJson("/api/query", query, signal, exactJson));
}

// A user's own statement as a frame.
export async function statementFrame(sql, signal) {
  return frameOf(await postJson("/api/sql", { sql }, signal, exactJson));
}

// What begins or ends a text, what is escaped in one, or a number of so many digits that JavaScript may round it.
const TOKEN = /\\.|"|-?\d[\d.]{15,}(?:[eE][-+]?\d+)?/g;

// JSON in which the numbers that JavaScript would round are texts.
function exactJson(text) {
  if (!/\d[\d.]{15}/.test(text)) return JSON.parse(text);
  let isText = false;
  return JSON.parse(text.replace(TOKEN, (token) => {
    if (token === '"') isText = !isText;
    return isText || token === '"' || isExact(token) ? token : `"${token}"`;
  }));
}

function isExact(text) {
  const number = Number(text);
  if (Number.isInteger(number)) return Number.isSafeInteger(number);
  return !Number.isFinite(number) || String(number) === text;
}

function frameOf(result) {
  const columns = result.meta.map(({ name, type }) => ({ name, type, ...converted(result.data[name] ?? [], type) }));
  return { columns, rows: result.rows };
}

const OTHER_ZONE = /DateTime[^']*'(?!UTC')/;

// Times as ms since the epoch, and numbers that JSON carries as text as numbers, with the text where a number cannot be exact.
function converted(values, type) {
  const kind = kindOf(type);
  // Times of another zone than UTC stay as ClickHouse writes them.
  if (kind === "time" && !OTHER_ZONE.test(type)) return { values: values.map((value) => (value === null ? null : moment(value))) };
  return kind === "number" ? numbers(values) : { values };
}

function numbers(values) {
  const exact = new Map();
  values.forEach((value, row) => typeof value === "string" && !isExact(value) && exact.set(row, value));
  return { values: values.map((value) => (typeof value === "string" ? Number(value) : value)), exact };
}

// ClickHouse writes UTC as 2026-01-31 12:00:00.123.
const moment = (text) => Date.parse(text.length === 10 ? `${text}T00:00:00Z` : `${text.replace(" ", "T").slice(0, 23)}Z`);
