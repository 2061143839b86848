// One printable page about a time range: the report of `legato incident`, with links to its streams. The server writes the text.

import { fetchJson } from "../api.js";
import { rangePicker, textBox } from "../controls.js";
import { element } from "../elements.js";
import { copyText } from "../files.js";
import { change, parameters, rangeOf } from "../location.js";
import { renderMarkdown } from "../panels/markdown.js";

const TRACE = /^[0-9a-f]{32}$/;

export async function showIncident(page, { theme }) {
  document.title = "Incident · Legato";
  const made = new Incident(page, theme);
  made.run();
  return made;
}

class Incident {
  constructor(page, theme) {
    Object.assign(this, { theme, abort: new AbortController(), text: "" });
    this.bar = element("div", { class: "bar", role: "group", "aria-label": "Time range and service" });
    this.report = element("article", { class: "report", "aria-live": "polite" });
    page.append(this.bar, this.report);
  }

  drawBar(span) {
    const service = textBox({ name: "service", label: "Service (empty: all)" }, [this.service()], (name, [value]) => this.set({ "var-service": value || null }));
    const range = rangePicker(span, (from, to) => this.set({ from, to }));
    const copy = button("Copy as Markdown", () => copyText(this.text));
    // A relative range would mean another time when the link is opened later.
    const link = button("Copy the link", () => copyText(this.permanent(span)));
    this.age = element("span", { class: "age", role: "status" });
    this.bar.replaceChildren(service, range, element("span", { class: "spacer" }), copy, link, button("Print", () => window.print()), this.age);
  }

  service() {
    return parameters().get("var-service") === "$__all" ? "" : parameters().get("var-service") || "";
  }

  set(changes) {
    change(changes);
    this.run();
  }

  permanent(span) {
    const url = new URL(window.location.href);
    url.searchParams.set("from", String(span.from_ms));
    url.searchParams.set("to", String(span.to_ms));
    return url.href;
  }

  async run() {
    this.abort.abort();
    const { signal } = (this.abort = new AbortController());
    const span = rangeOf({ from: "now-1h", to: "now" });
    this.drawBar(span);
    this.age.textContent = "loading …";
    this.text = "";
    try {
      const query = new URLSearchParams({ from_ms: span.from_ms, to_ms: span.to_ms, service: this.service() });
      const { markdown } = await fetchJson(`/api/incident?${query}`, { signal });
      this.text = markdown;
      const context = { span, variables: {}, theme: this.theme, href: (url) => url };
      this.report.replaceChildren(...renderMarkdown(markdown, context));
      linkStreams(this.report);
      this.age.textContent = "";
    } catch (error) {
      if (error.name === "AbortError") return;
      this.age.textContent = "";
      this.report.replaceChildren(element("p", { class: "failed", role: "alert" }, error.message));
    }
  }

  destroy() {
    this.abort.abort();
  }
}

function button(label, act) {
  const made = element("button", { type: "button" }, label);
  made.addEventListener("click", act);
  return made;
}

function linkStreams(report) {
  for (const cell of report.querySelectorAll("td, code")) {
    const trace = cell.textContent.trim();
    if (TRACE.test(trace)) cell.replaceChildren(element("a", { href: `/stream/${trace}` }, trace));
  }
}
