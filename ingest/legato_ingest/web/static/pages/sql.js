// The query page: a statement, the table of its result, and the statement of a panel to start from.
//
// The address names the panel, the range and the variables; the text of a statement stays in this tab. The server runs it like the statements
// of the read endpoint: read-only, for the reader's tenant, with the same limits.

import { postJson, statementFrame } from "../api.js";
import { element } from "../elements.js";
import { change, parameters, rangeOf } from "../location.js";
import { drawPanel, toCsv, toMarkdown } from "../panels/index.js";
import { copyText, downloadCsv } from "../files.js";

const KEY = "sql";
const FIRST = `SELECT service_name, vantage, model, count() AS streams, quantileExact(0.5)(ttft_us) / 1000 AS ttft_p50_ms
FROM streams
WHERE start_time > now() - INTERVAL 1 DAY
GROUP BY ALL
ORDER BY streams DESC`;
const PANEL = { type: "table", title: "Result", options: {}, fieldConfig: { defaults: {}, overrides: [] } };

export async function showSql(page, { theme }) {
  document.title = "SQL · Legato";
  const made = new SqlPage(page, theme);
  made.start().catch((error) => made.fail(error));
  return made;
}

class SqlPage {
  constructor(page, theme) {
    Object.assign(this, { theme, abort: new AbortController(), runs: 0, frame: null, drawn: null });
    this.text = element("textarea", { rows: "12", spellcheck: "false", "aria-label": "SQL", autocapitalize: "off" });
    this.run = element("button", { type: "button" }, "Run (Ctrl+Enter)");
    this.note = element("span", { class: "age", role: "status" });
    this.result = element("div", { class: "sql-result" });
    const columns = element("button", { type: "button" }, "Tables and columns");
    const markdown = element("button", { type: "button" }, "Copy as Markdown");
    const csv = element("button", { type: "button" }, "Download CSV");
    page.append(element("h1", {}, "SQL"),
      element("p", { class: "lead" }, "ClickHouse's SQL over Legato's tables and views, read-only. All of it is in docs/reference.md."),
      this.text, element("div", { class: "bar" }, this.run, columns, markdown, csv, this.note), this.result);
    this.run.addEventListener("click", () => this.execute());
    columns.addEventListener("click", () => this.execute(TABLES));
    markdown.addEventListener("click", () => this.frame && copyText(toMarkdown([this.frame], PANEL)));
    csv.addEventListener("click", () => this.frame && downloadCsv("result", toCsv([this.frame])));
    this.text.addEventListener("input", () => this.edited());
    this.text.addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && this.execute());
  }

  // The panel of the address, else the last statement of this tab, else an example.
  async start() {
    this.text.value = (await statementOf(parameters())) || kept() || FIRST;
    if (parameters().has("panel") || this.text.value === FIRST) await this.execute();
  }

  // An edited statement is no longer that of the panel in the address.
  edited() {
    keep(this.text.value);
    if (parameters().has("panel")) change({ dashboard: null, panel: null, interval_ms: null }, { push: false });
  }

  async execute(sql = this.text.value) {
    this.abort.abort();
    const { signal } = (this.abort = new AbortController());
    const began = performance.now();
    this.note.textContent = "running …";
    try {
      this.frame = await statementFrame(sql, signal);
      this.note.textContent = `${this.frame.rows.toLocaleString("en")} ${this.frame.rows === 1 ? "row" : "rows"} in ${Math.round(performance.now() - began)} ms`;
      await this.draw();
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    }
  }

  fail(error) {
    this.note.textContent = "";
    this.frame = null;
    this.result.replaceChildren(element("p", { class: "failed", role: "alert" }, error.message));
  }

  async draw() {
    const span = rangeOf({ from: "now-1h", to: "now" });
    const context = { span, interval_ms: 60_000, variables: {}, theme: this.theme, annotations: [], href: (url) => url, zoom() {} };
    // Another result begins at its first row, in the order of its statement.
    this.drawn = await drawPanel(this.result, { ...PANEL, id: ++this.runs }, [this.frame], context);
  }

  destroy() {
    this.abort.abort();
    this.drawn?.destroy();
  }
}

const TABLES = `SELECT table, name, type, comment
FROM system.columns
WHERE database = currentDatabase()
ORDER BY table, position`;

// The SQL of ?dashboard=UID&panel=ID/REF, expanded for the range and the variables of the address.
async function statementOf(query) {
  const [dashboard, name] = [query.get("dashboard"), query.get("panel")];
  if (!dashboard || !name) return "";
  const { from_ms, to_ms } = rangeOf({ from: "now-6h", to: "now" });
  const interval_ms = Number(query.get("interval_ms")) || 60_000;
  const variables = {};
  for (const [key, value] of query) if (key.startsWith("var-")) (variables[key.slice(4)] ??= []).push(value);
  return (await postJson("/api/query/sql", { dashboard, kind: "panel", name, from_ms, to_ms, interval_ms, variables })).sql;
}

function keep(sql) {
  try {
    window.sessionStorage.setItem(KEY, sql);
  } catch {
    // Storage can be disabled; the statement then lasts as long as the page.
  }
}

function kept() {
  try {
    return window.sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}
