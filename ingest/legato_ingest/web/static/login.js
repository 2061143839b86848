// The form for credentials, shown in place of a page that needs them. The server keeps them and sets a cookie; the form stores nothing.

import { postJson } from "./api.js";
import { element } from "./elements.js";

// What the API answers to a request without credentials names headers, which a person cannot enter.
const FIRST = /Authorization|X-ClickHouse/;

// Draw the form in place of the page; `reason`: why it is shown. `onDone` is called after the server has accepted the credentials.
export function drawLogin(page, reason, onDone) {
  document.title = "Log in · Legato";
  const user = element("input", { name: "user", autocomplete: "username" });
  const password = element("input", { name: "password", type: "password", autocomplete: "current-password", required: "" });
  const note = element("p", { class: "lead", role: "status" }, FIRST.test(reason) ? "Enter a token, or a user and a password." : reason);
  const form = element("form", { class: "login" }, element("h1", {}, "Log in"), note,
    element("label", {}, "User (empty for a token)", user), element("label", {}, "Password or token", password),
    element("button", {}, "Log in"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      await postJson("/api/session", { user: user.value, password: password.value });
      await onDone();
    } catch (error) {
      note.textContent = error.message;
      password.focus();
    }
  });
  page.replaceChildren(form);
  password.focus();
}
