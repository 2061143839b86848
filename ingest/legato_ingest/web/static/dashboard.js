// Draws a dashboard from its Grafana JSON: the bar, rows and panels. Each panel runs its own queries, when it is visible; a refresh, another
// range or another page cancels them. What a panel looks like is decided in panels/.

import { postJson, queryFrame } from "./api.js";
import { ALL, chosen, choice, dependentOn, presetOf, rangePicker, refreshPicker, setVariable, textBox, variablesOf } from "./controls.js";
import { element } from "./elements.js";
import { change, durationOf, parameters, rangeOf, valuesOf } from "./location.js";
import { PanelView } from "./panel_view.js";
import { CHARTS, FIGURES } from "./panels/index.js";
import { LiveView } from "./pages/live.js";

const LIVE = "legato-now";
const FIGURES_MS = 1_000;

export function showDashboard(page, board, { theme }) {
  const shown = new Dashboard(page, board, theme);
  shown.draw();
  return shown;
}

class Dashboard {
  constructor(page, board, theme) {
    Object.assign(this, { page, board, theme, panels: [], timer: 0, turn: 0, isGone: false, opened: new Set(), unknown: new Set() });
    this.observer = new IntersectionObserver((entries) => this.seen(entries), { rootMargin: "200px" });
  }

  // Draw all of it; what is drawn already is replaced.
  draw() {
    const { board } = this;
    // Starting the chart library takes half a second, in which nothing else draws: the first figures are drawn before.
    const hasFigures = board.panels.some(({ type }) => FIGURES.has(type));
    this.figures = new Promise((resolve) => {
      this.figureDrawn = resolve;
      setTimeout(resolve, hasFigures ? FIGURES_MS : 0);
    });
    document.title = `${board.title} · Legato`;
    this.bar = element("div", { class: "bar", role: "group", "aria-label": "Variables and time range" });
    this.grid = element("div");
    if (board.uid === LIVE) this.live = new LiveView();
    const above = this.live ? [this.live.element] : [];
    this.page.replaceChildren(element("h1", {}, board.title), element("p", { class: "lead" }, board.description || ""), ...above, this.bar, this.grid);
    this.apply();
  }

  // Take the state of the URL: another range or another value draws the bar again and runs all queries.
  apply() {
    if (this.isGone) return;
    this.refresh = parameters().get("refresh") ?? this.board.refresh ?? "";
    this.drawBar();
    this.drawPanels();
    this.checkPresets();
  }

  // Run the queries. A value that the dashboard chooses, and the store does not have in this range, would leave all panels empty: the
  // vantage of clients where only servers record.
  async checkPresets() {
    const mine = ++this.turn;
    const preset = variablesOf(this.board).filter((variable) =>
      variable.includeAll && !valuesOf(variable.name).length && !presetOf(variable).includes(ALL));
    const known = await Promise.all(preset.map((variable) => this.namesOf(variable).catch(() => [])));
    if (this.isGone || mine !== this.turn) return;
    const unknown = preset.filter((variable, place) => known[place].length && !presetOf(variable).some((value) => known[place].includes(value)));
    const before = this.state().variables;
    this.unknown = new Set(unknown.map(({ name }) => name));
    if (JSON.stringify(this.state().variables) !== JSON.stringify(before)) this.drawBar();
    this.run();
  }

  state() {
    return { span: rangeOf(this.board.time), variables: chosen(this.board, this.unknown), theme: this.theme };
  }

  drawBar() {
    const { span, variables } = this.state();
    const changed = async (name, values) => {
      setVariable(name, values);
      await Promise.all(dependentOn(this.board, name).map((variable) => this.keepKnown(variable)));
      this.apply();
    };
    const fields = variablesOf(this.board).filter(({ hide }) => hide !== 2).map((variable) =>
      variable.type === "textbox" ? textBox(variable, variables[variable.name], changed)
        : choice(variable, variables[variable.name], () => this.namesOf(variable), changed));
    const range = rangePicker(span, (from, to) => this.setRange(from, to));
    const refresh = refreshPicker(this.refresh, (every) => {
      change({ refresh: every });
      this.apply();
    });
    const again = element("button", { type: "button" }, "Run now");
    again.addEventListener("click", () => this.run());
    this.age = element("span", { class: "age", role: "status" });
    this.bar.replaceChildren(...fields, element("span", { class: "spacer" }), range, refresh, again, this.age);
  }

  setRange(from, to) {
    change({ from, to });
    this.apply();
  }

  // Chosen values that the variable's query no longer returns are taken back, as in Grafana.
  async keepKnown(variable) {
    const names = new Set(await this.namesOf(variable).catch(() => []));
    if (this.isGone) return;
    const values = valuesOf(variable.name);
    const known = values.filter((value) => value === ALL || names.has(value));
    if (names.size && known.length < values.length) change({ [`var-${variable.name}`]: known.length ? known : null }, { push: false });
  }

  async namesOf(variable) {
    const frame = await queryFrame(this.query("variable", variable.name, 60_000));
    return frame.columns[0].values.map(String);
  }

  // Panels query the range and the values that their axes show; a list of names is that of this moment.
  query(kind, name, interval_ms) {
    const { span, variables } = kind === "variable" ? this.state() : this.moment;
    return { dashboard: this.board.uid, kind, name, from_ms: span.from_ms, to_ms: span.to_ms, interval_ms, variables };
  }

  drawPanels() {
    this.clear();
    this.grid.replaceChildren();
    let section = this.section();
    for (const panel of this.board.panels) {
      if (panel.type !== "row") {
        this.place(section, panel);
        continue;
      }
      section = this.drawRow(panel);
    }
  }

  // A row's heading, and the section for the panels below it. The panels of a closed row are neither drawn nor queried.
  drawRow(row) {
    const isOpen = !row.collapsed || this.opened.has(row.id);
    const title = element("button", { class: "row-title", type: "button", "aria-expanded": String(isOpen) }, 
      element("span", { "aria-hidden": "true" }, isOpen ? "▾" : "▸"), row.title);
    title.addEventListener("click", () => {
      this.opened[isOpen ? "delete" : "add"](row.id);
      this.drawPanels();
      this.run();
    });
    this.grid.append(title);
    const section = this.section();
    if (isOpen) for (const panel of row.panels || []) this.place(section, panel);
    return section;
  }

  section() {
    const made = element("div", { class: "section" });
    this.grid.append(made);
    return { made, top: null };
  }

  place(section, panel) {
    const { x, y, w, h } = panel.gridPos;
    section.top ??= y;
    const view = new PanelView(panel, this);
    // The places for wide and for narrow screens; dashboard.css chooses.
    const place = {
      column: `${x + 1} / span ${w}`, row: `${y - section.top + 1} / span ${h}`, height: `${Math.max(h * 38 - 8, 190)}px`,
      "narrow-column": `span ${w > 6 || CHARTS.has(panel.type) ? 12 : 6}`, "narrow-row": `span ${h}`,
    };
    for (const [name, value] of Object.entries(place)) view.element.style.setProperty(`--${name}`, value);
    section.made.append(view.element);
    this.panels.push(view);
    this.observer.observe(view.element);
  }

  seen(entries) {
    for (const { target, isIntersecting } of entries) {
      const view = this.panels.find(({ element: own }) => own === target);
      if (view) view.setVisible(isIntersecting);
    }
  }

  // Run the queries of all visible panels, and again after the refresh interval.
  run() {
    if (this.isGone) return;
    clearTimeout(this.timer);
    clearInterval(this.clock);
    const [began, mine] = [Date.now(), ++this.turn];
    this.moment = this.state();
    this.annotations = this.fetchAnnotations();
    const ended = Promise.allSettled(this.panels.map((view) => view.run()));
    this.clock = setInterval(() => this.showAge(began), 1000);
    this.showAge(began);
    const every_ms = durationOf(this.refresh);
    if (every_ms) ended.then(() => this.runAgain(mine, began, every_ms));
  }

  // A cancelled request still runs on the server, so the next round waits for the end of this one. After a round that took longer than the
  // refresh interval the page waits as long again: a page that is left open takes at most half of a slow server's time.
  runAgain(mine, began, every_ms) {
    if (this.isGone || mine !== this.turn) return;
    const took_ms = Date.now() - began;
    const wait_ms = took_ms < every_ms ? every_ms - took_ms : took_ms;
    this.timer = setTimeout(() => (document.hidden ? this.later() : this.run()), wait_ms);
  }

  // A page in a hidden tab does not query; it runs when the tab is shown again.
  later() {
    document.addEventListener("visibilitychange", () => this.run(), { once: true });
  }

  showAge(began) {
    const seconds = Math.round((Date.now() - began) / 1000);
    this.age.textContent = seconds < 2 ? "now" : seconds < 120 ? `${seconds} s ago` : `${Math.round(seconds / 60)} min ago`;
  }

  async fetchAnnotations() {
    const listed = (this.board.annotations?.list || []).filter(({ enable, target }) => enable && target?.rawSql);
    const found = await Promise.allSettled(listed.map(async ({ name, iconColor }) => {
      const frame = await queryFrame(this.query("annotation", name, 60_000));
      return annotationsOf(frame, iconColor);
    }));
    return found.flatMap(({ value }) => value || []);
  }

  // The SQL that a panel runs now.
  async sqlOf(names, interval_ms) {
    const texts = await Promise.all(names.map((name) => postJson("/api/query/sql", this.query("panel", name, interval_ms))));
    return texts.map(({ sql }) => sql).join(";\n\n");
  }

  // The address of the query page for a panel's query, with the same range and the variables of this page.
  sqlPage(name, interval_ms) {
    const { span, variables } = this.moment;
    const pairs = Object.entries(variables).flatMap(([variable, values]) => values.map((value) => [`var-${variable}`, value]));
    return `/sql?${new URLSearchParams([["dashboard", this.board.uid], ["panel", name], ["interval_ms", interval_ms], ["from", span.from], ["to", span.to], ...pairs])}`;
  }

  // Draw the rows that are there in other colours, without another query.
  setTheme(theme) {
    this.theme = theme;
    if (this.moment) this.moment.theme = theme;
    for (const view of this.panels) view.redraw();
  }

  clear() {
    this.observer.disconnect();
    for (const view of this.panels) view.destroy();
    this.panels = [];
  }

  destroy() {
    this.isGone = true;
    clearTimeout(this.timer);
    clearInterval(this.clock);
    this.live?.destroy();
    this.clear();
  }
}

function annotationsOf(frame, color) {
  const column = (name) => frame.columns.find((each) => each.name === name)?.values || [];
  const [times, ends, titles, texts] = ["time", "timeEnd", "title", "text"].map(column);
  return times.map((time_ms, place) => ({ time_ms, end_ms: ends[place] ?? null, title: titles[place] ?? "", text: texts[place] ?? "", color }));
}
