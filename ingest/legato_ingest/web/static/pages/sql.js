// The query page: a statement, the table of its result, and the statement of a panel to start from.
//
// The address names the panel, the range and the variables; the text of a statement stays in this tab. The server runs it like the statements
// of the read endpoint: read-only, for the reader's tenant, with the same limits.

import { frameOf, postJson } from "../api.js";
import { element } from "../elements.js";
import { parameters, rangeOf } from "../location.js";
import { drawPanel, toCsv, toMarkdown } from "../panels/index.js";
import { downloadCsv } from "../files.js";

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
  await made.start();
  return made;
}

class SqlPage {
  constructor(page, theme) {
    Object.assign(this, { theme, abort: new AbortController(), frame: null, drawn: null });
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
    columns.addEventListener("click", () => this.show(TABLES));
    markdown.addEventListener("click", () => this.frame && navigator.clipboard?.writeText(toMarkdown([this.frame], PANEL)));
    csv.addEventListener("click", () => this.frame && downloadCsv("result", toCsv([this.frame])));
    this.text.addEventListener("input", () => keep(this.text.value));
    this.text.addEventListener("keydown", (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && this.execute());
  }

  // The panel of the address, else the last statement of this tab, else an example.
  async start() {
    this.text.value = (await statementOf(parameters())) || kept() || FIRST;
    if (parameters().has("panel") || this.text.value === FIRST) await this.execute();
  }

  show(sql) {
    this.text.value = sql;
    keep(sql);
    return this.execute();
  }

  async execute() {
    this.abort.abort();
    const { signal } = (this.abort = new AbortController());
    const began = performance.now();
    this.note.textContent = "running …";
    try {
      this.frame = frameOf(await postJson("/api/sql", { sql: this.text.value }, signal));
      this.note.textContent = `${this.frame.rows.toLocaleString("en")} ${this.frame.rows === 1 ? "row" : "rows"} in ${Math.round(performance.now() - began)} ms`;
      await this.draw();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.note.textContent = "";
      this.frame = null;
      this.result.replaceChildren(element("p", { class: "failed", role: "alert" }, error.message));
    }
  }

  async draw() {
    const span = rangeOf({ from: "now-1h", to: "now" });
    const context = { span, interval_ms: 60_000, variables: {}, theme: this.theme, annotations: [], href: (url) => url, zoom() {} };
    this.drawn = await drawPanel(this.result, PANEL, [this.frame], context);
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
  const variables = {};
  for (const [key, value] of query) if (key.startsWith("var-")) (variables[key.slice(4)] ??= []).push(value);
  return (await postJson("/api/query/sql", { dashboard, kind: "panel", name, from_ms, to_ms, variables })).sql;
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
