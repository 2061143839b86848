// The page: finds out what the URL names, draws it, and replaces it when the URL changes. What is drawn has its own module each.

import { ApiError, fetchJson } from "./api.js";
import { showDashboard } from "./dashboard.js";
import { element, message } from "./elements.js";
import { boardAt, change, decoded, go, pageUrl, parameters } from "./location.js";
import { drawLogin } from "./login.js";
import { drawNavigation, followLink, openStream } from "./navigation.js";
import { showIncident } from "./pages/incident.js";
import { showSql } from "./pages/sql.js";
import { showStream } from "./stream/stream.js";
import { applyTheme, switchTheme, theme } from "./theme.js";
import { visibleText } from "./visible.js";

const page = document.getElementById("page");
const RETRY_MS = 3_000;
const NOTHING = { destroy() {} };
let shown = NOTHING;
let visit = 0;
let boards = [];
let address = "";

async function start() {
  applyTheme();
  document.getElementById("theme").addEventListener("click", changeTheme);
  document.getElementById("logout").addEventListener("click", logOut);
  document.getElementById("find").addEventListener("submit", openStream);
  document.addEventListener("click", followLink);
  window.addEventListener("popstate", () => isNew() && show(true));
  window.addEventListener("loginneeded", ({ detail }) => askForLogin(detail));
  window.addEventListener("statechange", () => {
    address = here();
    drawNavigation(boards);
  });
  await show(false);
}

const here = () => window.location.pathname + window.location.search;

// The link to the content changes only the fragment, which is no other page.
const isNew = () => here() !== address || !window.location.hash;

// Draw what the URL names. `navigated`: the focus moves to the content, so that a screen reader starts there.
async function show(navigated) {
  const mine = ++visit;
  address = here();
  shown.destroy();
  shown = NOTHING;
  // Asked for beside the list; an error of it is shown when the list is there.
  const board = boardAt() ? fetchJson(`/api/dashboards/${encodeURIComponent(boardAt())}`) : null;
  board?.catch(() => {});
  try {
    const { dashboards, has_login, notice } = await fetchJson("/api/dashboards");
    if (mine !== visit) return;
    document.getElementById("logout").hidden = !has_login;
    document.getElementById("notice").textContent = notice;
    document.getElementById("notice").hidden = !notice;
    boards = dashboards;
    drawNavigation(boards);
    const drawn = await drawPage(board, () => mine === visit);
    if (mine !== visit) drawn.destroy();
    else shown = drawn;
    if (navigated && mine === visit) page.focus({ preventScroll: true });
  } catch (error) {
    if (mine !== visit) return;
    showError(error);
    if (isAway(error)) setTimeout(() => mine === visit && show(false), RETRY_MS);
  }
}

// The server, or the one that a proxy asks, is not there: it may be started again.
const isAway = (error) => error instanceof ApiError && (error.status === 0 || error.status >= 502);

// A dashboard draws the rows that it has; the other pages are drawn from the start.
function changeTheme() {
  switchTheme();
  if (shown.setTheme) shown.setTheme(theme());
  else show(false);
}

async function drawPage(board, isShown) {
  const [kind, name] = window.location.pathname.split("/").filter(Boolean).map(decoded);
  // Each visit has its own element: a reply that is late for an earlier visit draws into one that is no longer in the document.
  const place = element("div");
  page.replaceChildren(place);
  if (kind === "stream") return drawStream(place, name);
  if (kind === "incident") return showIncident(place, { theme: theme() });
  if (kind === "sql") return showSql(place, { theme: theme() });
  const content = await board;
  return isShown() ? showDashboard(place, content, { theme: theme() }) : NOTHING;
}

function drawStream(place, identity) {
  document.title = `Stream ${visibleText(identity.slice(0, 12))} · Legato`;
  return showStream(place, identity, {
    theme: theme(),
    fetchJson: (path, signal) => fetchJson(path, { signal }),
    href: pageUrl,
    getState: (name) => parameters().get(name),
    setState: (name, value) => change({ [name]: value }, { push: false }),
  });
}

function showError(error) {
  if (error instanceof ApiError && error.status === 401) return;
  const shownAlready = page.childElementCount === 1 && page.firstElementChild.matches(".message") && page.textContent === visibleText(error.message);
  if (!shownAlready) page.replaceChildren(message(error.message));
}

// Several requests notice the same end of a session: the form is drawn once.
function askForLogin(reason) {
  if (page.querySelector("form.login")) return;
  visit++;
  shown.destroy();
  shown = NOTHING;
  drawLogin(page, reason, () => show(true));
}

async function logOut() {
  try {
    await fetchJson("/api/session", { method: "DELETE" });
    go("/");
  } catch (error) {
    showError(error);
  }
}

start();
