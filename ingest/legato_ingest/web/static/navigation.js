// The header: links to the pages and dashboards, the current one marked, and the search for a stream. It draws no page.

import { element } from "./elements.js";
import { boardAt, go, kept } from "./location.js";

// Short names for the header; a user's own dashboard has its title.
const NAMES = {
  "legato-streams": "Streams", "legato-now": "Now", "legato-attribution": "Attribution", "legato-compare": "Compare", "legato-itl": "ITL",
  "legato-nodes": "Nodes", "legato-chunking": "Chunking", "legato-cost": "Cost", "legato-runbook": "Runbook", "legato-self": "Self-monitoring",
};
// The page of a stream replaces this dashboard; the page links to it.
const LEFT_OUT = new Set(["legato-stream"]);
const PAGES = [["/incident", "Incident", "One printable page about a time range"], ["/sql", "SQL", "Your queries, read-only"]];

export function drawNavigation(boards) {
  const links = boards.filter(({ uid }) => !LEFT_OUT.has(uid)).map(({ uid, title, description }) =>
    link(`/d/${uid}`, NAMES[uid] || title, `${title}: ${description}`, uid === boardAt()));
  for (const [path, name, about] of PAGES) links.push(link(path, name, about, window.location.pathname === path));
  document.getElementById("boards").replaceChildren(...links);
}

function link(path, name, title, isCurrent) {
  const made = element("a", { href: path + kept(), title }, name);
  if (isCurrent) made.setAttribute("aria-current", "page");
  return made;
}

export function openStream(event) {
  event.preventDefault();
  const identity = new FormData(event.target).get("stream").trim();
  if (identity) go(`/stream/${encodeURIComponent(identity)}`);
}

// Links inside the page replace its content; everything else is the browser's.
export function followLink(event) {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target) return;
  const url = new URL(link.href);
  if (url.origin !== window.location.origin || url.hash || link.hasAttribute("download")) return;
  event.preventDefault();
  go(url.pathname + url.search);
}
