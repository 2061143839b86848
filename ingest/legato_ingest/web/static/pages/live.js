// What runs now, above the dashboard Now: streams in flight, the stalled ones with their growing gap, and the engines.
//
// The server sends the state once a second; between two of its events the gaps grow here.

import { causeOf } from "../causes.js";
import { element } from "../elements.js";
import { pageUrl } from "../location.js";

const FRAME_MS = 100;
const SHOWN_MAX = 50;
const SCALE_US = 30e6;

export class LiveView {
  constructor() {
    this.status = element("p", { class: "live-status", role: "status" }, "connecting …");
    this.flights = element("div", { class: "live-flights" });
    this.list = element("ol", { class: "live-stalled", "aria-label": "Streams that are stalled now, longest gap first" });
    this.engines = element("div", { class: "live-engines", "aria-label": "Engines in the last minute" });
    this.element = element("section", { class: "live", "aria-label": "Live" }, this.status, this.flights, this.list, this.engines);
    this.rows = [];
    this.source = new EventSource("/api/now");
    this.source.addEventListener("now", (event) => this.show(JSON.parse(event.data)));
    this.source.addEventListener("failed", (event) => this.say(`the store does not answer: ${JSON.parse(event.data).error}`));
    this.source.addEventListener("denied", (event) => this.end(JSON.parse(event.data).error));
    this.source.addEventListener("error", () => this.say("no connection to legato serve: trying again"));
    this.timer = setInterval(() => this.grow(), FRAME_MS);
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
    this.element.classList.add("live-old");
  }

  end(text) {
    this.source.close();
    this.say(`${text}: load the page again to log in`);
  }

  show(now) {
    this.at = performance.now();
    this.element.classList.remove("live-old");
    const flying = now.in_flight.reduce((sum, row) => sum + Number(row.in_flight), 0);
    const stalled = Number(now.stalled_streams);
    const text = flying || stalled
      ? `${flying.toLocaleString("en")} in flight, ${stalled ? `${stalled.toLocaleString("en")} stalled for 2 s or more` : "none stalled"}`
      : "No stream is in flight, as far as is known: the SDK reports streams in flight every 5 s.";
    if (this.status.textContent !== text) this.status.textContent = text;
    this.flights.replaceChildren(...now.in_flight.map(flight));
    this.rows = now.stalled.slice(0, SHOWN_MAX).map(stalledRow);
    this.list.replaceChildren(...this.rows.map(({ item }) => item));
    this.engines.replaceChildren(...now.engines.map(engine));
    this.grow();
  }

  // Streams stay silent until the server says otherwise.
  grow() {
    if (this.element.classList.contains("live-old")) return;
    for (const { bar, length, silence_us } of this.rows) {
      const now_us = silence_us + 1e3 * (performance.now() - this.at);
      length.textContent = `${(now_us / 1e6).toFixed(1)} s`;
      bar.style.width = `${Math.min(100, (100 * now_us) / SCALE_US)}%`;
    }
  }

  destroy() {
    clearInterval(this.timer);
    this.source.close();
  }
}

function flight({ service, vantage, model, in_flight }) {
  return element("span", { class: "live-flight" }, element("strong", {}, Number(in_flight).toLocaleString("en")),
    ` ${service || "(no service)"} · ${vantage} · ${model || "(no model)"}`);
}

function stalledRow(row) {
  const bar = element("span", { class: "live-bar" });
  const length = element("strong", {});
  const waits = Number(row.gap_start_us) === 0 ? "waits for its first output" : "not judged yet";
  const cause = row.cause ? `${causeOf(row.cause).label} · ${row.confidence}` : waits;
  if (row.cause) bar.style.background = causeOf(row.cause).color;
  const who = [row.vantage, row.service || "(no service)", row.model || "(no model)", row.engine].filter(Boolean).join(" · ");
  const link = element("a", { href: pageUrl(`/stream/${row.trace}`), title: row.trace }, row.trace.slice(0, 12));
  const item = element("li", {}, link, element("span", { class: "live-track" }, bar), length, element("span", {}, cause), element("span", {}, who));
  return { item, bar, length, silence_us: Number(row.silence_us) };
}

function engine(row) {
  const kv = row.kv_used === null ? "unknown" : `${Math.round(100 * Number(row.kv_used))} %`;
  const level = element("span", { class: "live-bar" });
  level.style.width = row.kv_used === null ? "0" : `${100 * Number(row.kv_used)}%`;
  const known = (value) => (value === null ? "–" : Number(value).toLocaleString("en"));
  return element("div", { class: "live-engine" }, element("strong", {}, row.engine),
    element("span", {}, `${known(row.running)} running, ${known(row.waiting)} waiting, ${known(row.preempted)} preempted`),
    element("span", { class: "live-track", title: "KV cache used" }, level), element("span", {}, `KV cache ${kv}, last step ${Math.max(0, row.age_s)} s ago`));
}
