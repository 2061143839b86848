// One panel of a dashboard: its frame with title, description and menu, its queries, and what it shows while they run or when they fail.

import { queryFrame } from "./api.js";
import { dropdown, element, openDialog } from "./elements.js";
import { copyText, downloadCsv } from "./files.js";
import { durationOf, intervalOf, pageUrl } from "./location.js";
import { CHARTS, drawPanel, FIGURES, toCsv, toMarkdown } from "./panels/index.js";
import { visibleText } from "./visible.js";

export class PanelView {
  constructor(panel, dashboard) {
    Object.assign(this, { panel, dashboard, frames: null, annotations: [], interval_ms: 0, drawn: null, isVisible: false, isDue: false, abort: new AbortController() });
    this.body = element("div", { class: "body" });
    this.element = element("section", { class: `panel panel-${panel.type} loading`, "aria-label": panel.title || "Text" });
    this.element.append(...(panel.title ? this.header() : []), this.body);
  }

  header() {
    const { panel } = this;
    const about = element("p", { class: "about", hidden: "" }, panel.description || "");
    const help = element("button", { type: "button", "aria-expanded": "false", title: panel.description || "" }, "?");
    help.setAttribute("aria-label", `What ${panel.title} shows`);
    help.addEventListener("click", () => {
      about.hidden = !about.hidden;
      help.setAttribute("aria-expanded", String(!about.hidden));
    });
    const made = element("header", {}, element("h2", { title: visibleText(panel.title) }, panel.title), ...(panel.description ? [help] : []));
    if (this.refs().length) made.append(this.menu());
    return [made, about];
  }

  menu() {
    const items = [
      ["The SQL behind this", () => this.showSql()],
      ["Copy as Markdown", () => copyText(toMarkdown(this.frames || [], this.panel))],
      ["Download CSV", () => downloadCsv(this.panel.title, toCsv(this.frames || []))],
    ].map(([label, act]) => {
      const button = element("button", { type: "button" }, label);
      button.addEventListener("click", () => {
        made.open = false;
        act();
      });
      return button;
    });
    const made = dropdown("menu", "⋮", element("div", {}, ...items));
    made.querySelector("summary").setAttribute("aria-label", `Menu of ${this.panel.title}`);
    return made;
  }

  refs() {
    return (this.panel.targets || []).filter(({ rawSql, hide }) => rawSql && !hide).map(({ refId }) => `${this.panel.id}/${refId}`);
  }

  setVisible(isVisible) {
    this.isVisible = isVisible;
    if (isVisible && this.isDue) this.run();
  }

  // Run the queries; those of an earlier run are cancelled. A panel that is not visible waits until it is.
  async run() {
    this.abort.abort();
    this.isDue = !this.isVisible;
    this.element.classList.toggle("loading", this.isVisible);
    if (this.isDue) return;
    const { signal } = (this.abort = new AbortController());
    try {
      const interval_ms = this.interval();
      const frames = await Promise.all(this.refs().map((name) => queryFrame(this.dashboard.query("panel", name, interval_ms), signal)));
      const annotations = this.panel.type === "timeseries" ? await this.dashboard.annotations : [];
      if (!signal.aborted) await this.draw(frames, annotations, interval_ms);
    } catch (error) {
      if (error.name !== "AbortError") this.fail(error);
    } finally {
      if (!signal.aborted) this.element.classList.remove("loading");
    }
  }

  interval() {
    const { span } = this.dashboard.moment;
    return intervalOf(span, this.body.clientWidth, durationOf(this.panel.interval));
  }

  async draw(frames, annotations, interval_ms) {
    const { span, variables, theme } = this.dashboard.moment;
    Object.assign(this, { frames, annotations, interval_ms });
    // Drawn again into the same element, a table keeps its sorting and a chart its hidden series.
    if (!this.drawn) this.body.replaceChildren();
    const context = {
      span, variables, theme, annotations, interval_ms,
      href: pageUrl,
      zoom: (from_ms, to_ms) => this.dashboard.setRange(String(Math.round(from_ms)), String(Math.round(to_ms))),
    };
    if (CHARTS.has(this.panel.type)) await this.dashboard.figures;
    this.drawn = await drawPanel(this.body, this.panel, frames, context);
    if (FIGURES.has(this.panel.type)) this.dashboard.figureDrawn();
    if (this.isGone) this.drawn.destroy();
  }

  // Draw the same rows again. A panel that failed has none; one that is loading draws its new rows later.
  async redraw() {
    if (this.drawn) await this.draw(this.frames, this.annotations, this.interval_ms);
  }

  fail(error) {
    this.drawn?.destroy();
    this.drawn = null;
    this.body.replaceChildren(element("p", { class: "failed", role: "alert" }, error.message));
  }

  async showSql() {
    const text = element("pre", { tabindex: "0" }, "loading …");
    const edit = this.refs().map((name) => element("a", { href: this.dashboard.sqlPage(name, this.interval()) }, "Run and edit"));
    this.dialog = openDialog(`The SQL of ${this.panel.title}`, [element("h2", {}, this.panel.title), text], edit);
    for (const link of edit) link.addEventListener("click", () => this.dialog.close());
    text.textContent = visibleText(await this.dashboard.sqlOf(this.refs(), this.interval()).catch((error) => error.message));
  }

  destroy() {
    this.isGone = true;
    this.dialog?.close();
    this.abort.abort();
    this.drawn?.destroy();
  }
}
