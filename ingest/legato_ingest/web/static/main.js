// The page: finds out what the URL names, draws it, and replaces it when the URL changes. Dashboards and streams have their own modules.

import { ApiError, fetchJson, postJson } from "./api.js";
import { showDashboard } from "./dashboard.js";
import { element, message } from "./elements.js";
import { go } from "./location.js";

const page = document.getElementById("page");
let shown = { destroy() {} };
let visit = 0;
let listed = [];

async function start() {
  applyTheme(stored("theme") || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark"));
  document.getElementById("theme").addEventListener("click", switchTheme);
  document.getElementById("logout").addEventListener("click", logOut);
  document.getElementById("find").addEventListener("submit", openStream);
  document.addEventListener("click", followLink);
  window.addEventListener("popstate", () => show(true));
  window.addEventListener("statechange", () => drawNavigation(listed));
  await show(false);
}

// Draw what the URL names. `navigated`: the focus moves to the content, so that a screen reader starts there.
async function show(navigated) {
  const mine = ++visit;
  shown.destroy();
  shown = { destroy() {} };
  try {
    const { dashboards, has_login } = await fetchJson("/api/dashboards");
    if (mine !== visit) return;
    document.getElementById("logout").hidden = !has_login;
    listed = dashboards;
    drawNavigation(listed);
    const drawn = await drawPage(dashboards);
    if (mine !== visit) drawn.destroy();
    else shown = drawn;
    if (navigated) page.focus({ preventScroll: true });
  } catch (error) {
    if (mine === visit) showError(error);
  }
}

async function drawPage(dashboards) {
  const [kind, name] = window.location.pathname.split("/").filter(Boolean).map(decodeURIComponent);
  page.replaceChildren();
  if (kind === "d") return showDashboard(page, await fetchJson(`/api/dashboards/${encodeURIComponent(name)}`), { theme: theme() });
  drawHome(dashboards);
  return { destroy() {} };
}

function drawNavigation(dashboards) {
  const current = window.location.pathname.split("/")[2];
  const links = dashboards.map(({ uid, title }) => {
    const link = element("a", { href: `/d/${uid}${window.location.search}` }, title.replace(/^Legato · /, ""));
    if (uid === current) link.setAttribute("aria-current", "page");
    return link;
  });
  document.getElementById("boards").replaceChildren(...links);
}

function drawHome(dashboards) {
  document.title = "Legato";
  const cards = dashboards.map(({ uid, title, description }) =>
    element("li", {}, element("a", { href: `/d/${uid}` }, element("strong", {}, title)), element("p", {}, description)));
  page.append(
    element("h1", {}, "Legato"),
    element("p", { class: "lead" }, "What streamed responses felt like, and why. Start with Streams, or open a stream by its id."),
    element("ul", { class: "cards" }, ...cards),
  );
}

function showError(error) {
  if (error instanceof ApiError && error.status === 401) return drawLogin(error.message);
  page.replaceChildren(message(error.message));
}

function drawLogin(reason) {
  document.title = "Log in · Legato";
  const user = element("input", { name: "user", autocomplete: "username" });
  const password = element("input", { name: "password", type: "password", autocomplete: "current-password", required: "" });
  const note = element("p", { class: "lead", role: "status" }, reason);
  const form = element("form", { class: "login" }, element("h1", {}, "Log in"), note,
    element("label", {}, "User (empty for a token)", user), element("label", {}, "Password or token", password),
    element("button", {}, "Log in"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await postJson("/api/session", { user: user.value, password: password.value });
      await show(true);
    } catch (error) {
      note.textContent = error.message;
      password.focus();
    }
  });
  page.replaceChildren(form);
  password.focus();
}

async function logOut() {
  await fetchJson("/api/session", { method: "DELETE" });
  go("/");
}

function openStream(event) {
  event.preventDefault();
  const identity = new FormData(event.target).get("stream").trim();
  if (identity) go(`/d/legato-stream/stream?var-stream=${encodeURIComponent(identity)}`);
}

// Links inside the page replace its content; everything else is the browser's.
function followLink(event) {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || link.target) return;
  const url = new URL(link.href);
  if (url.origin !== window.location.origin || url.hash || link.hasAttribute("download")) return;
  event.preventDefault();
  go(url.pathname + url.search);
}

const theme = () => document.documentElement.dataset.theme;

function applyTheme(name) {
  document.documentElement.dataset.theme = name;
}

function switchTheme() {
  applyTheme(theme() === "dark" ? "light" : "dark");
  try {
    window.localStorage.setItem("theme", theme());
  } catch {
    // Storage can be disabled; the theme then lasts as long as the page.
  }
  show(false);
}

function stored(name) {
  try {
    return window.localStorage.getItem(name);
  } catch {
    return null;
  }
}

start();
