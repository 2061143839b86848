// What runs now, above the dashboard Now: streams in flight, the stalled ones with their growing gap, and the engines.
//
// The server sends the state once a second; between two of its events the gaps grow here.

import { causeOf } from "../causes.js";
import { element } from "../elements.js";
import { pageUrl } from "../location.js";

const FRAME_MS = 100;
const AGAIN_MS = 5_000;
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
    this.timer = setInterval(() => this.grow(), FRAME_MS);
    this.connect();
  }

  // A browser repeats a connection that broke, and gives up after a reply that is no stream of events: the page then asks again.
  connect() {
    this.source = new EventSource("/api/now");
    this.source.addEventListener("now", (event) => this.show(JSON.parse(event.data)));
    this.source.addEventListener("failed", (event) => this.say(`the store does not answer: ${JSON.parse(event.data).error}`));
    this.source.addEventListener("denied", (event) => this.end(JSON.parse(event.data).error));
    this.source.addEventListener("error", () => {
      this.say("no connection to legato serve: trying again");
      if (this.source.readyState === EventSource.CLOSED) this.again = setTimeout(() => this.connect(), AGAIN_MS);
    });
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
    this.element.classList.add("live-old");
  }

  end(text) {
    this.source.close();
    window.dispatchEvent(new CustomEvent("loginneeded", { detail: text }));
  }

  show(now) {
    this.at = performance.now();
    this.element.classList.remove("live-old");
    const text = headline(now);
    if (this.status.textContent !== text) this.status.textContent = text;
    this.flights.replaceChildren(...now.in_flight.map(flight));
    this.rows = byStream(now.stalled).slice(0, SHOWN_MAX).map(stalledRow);
    const more = Number(now.stalled_streams) - this.rows.length;
    const rest = more > 0 ? [element("li", { class: "live-more" }, `and ${more.toLocaleString("en")} more`)] : [];
    this.list.replaceChildren(...this.rows.map(({ item }) => item), ...rest);
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
    clearTimeout(this.again);
    this.source.close();
  }
}

// A stream in flight is known at each of its vantages, so the numbers of two vantages must not be added up.
function headline(now) {
  const flying = new Map();
  for (const { vantage, in_flight } of now.in_flight) flying.set(vantage, (flying.get(vantage) || 0) + Number(in_flight));
  const stalled = Number(now.stalled_streams);
  if (!flying.size && !stalled) return "No stream is in flight, as far as is known: the SDK reports streams in flight every 5 s.";
  const where = [...flying].map(([vantage, number]) => `${number.toLocaleString("en")} in flight at the ${vantage}`).join(", ");
  const still = stalled ? `${stalled.toLocaleString("en")} stalled for 2 s or more` : "none stalled";
  return where ? `${where}: ${still}` : still;
}

// One row a stream, with its longest silence and all vantages that report it. A trace can have several streams: the second longest silence
// of each of its vantages is that of the second stream.
function byStream(rows) {
  const found = [];
  for (const row of rows) {
    const first = found.find(({ trace, vantages }) => trace === row.trace && !vantages.includes(row.vantage));
    if (first) first.vantages.push(row.vantage);
    else found.push({ ...row, vantages: [row.vantage] });
  }
  return found;
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
  const who = [row.vantages.join(" and "), row.service || "(no service)", row.model || "(no model)", row.engine].filter(Boolean).join(" · ");
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
