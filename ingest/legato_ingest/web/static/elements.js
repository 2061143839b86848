// Builds elements of the document. Text is always set as visible text, so nothing from the store becomes markup or is unseen.

import { visibleText } from "./visible.js";

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children.map((child) => (child instanceof Node ? child : visibleText(child))));
  return made;
}

export const message = (text) => element("p", { class: "message", role: "alert" }, text);

// A <details> that closes with Escape, and with a click elsewhere.
export function dropdown(className, label, ...content) {
  const summary = element("summary", {}, label);
  const made = element("details", { class: className }, summary, ...content);
  const close = (event) => {
    if (event.type === "keydown" ? event.key !== "Escape" : made.contains(event.target)) return;
    made.open = false;
    if (event.type === "keydown") summary.focus();
  };
  made.addEventListener("toggle", () => {
    const change = made.open ? "addEventListener" : "removeEventListener";
    document[change]("click", close);
    document[change]("keydown", close);
  });
  return made;
}

// A modal <dialog> that is removed when it is closed; `links` stand beside its button.
export function openDialog(label, content, links = []) {
  const close = element("button", { type: "button" }, "Close");
  const made = element("dialog", { "aria-label": label }, ...content, element("p", { class: "bar" }, close, ...links));
  close.addEventListener("click", () => made.close());
  made.addEventListener("close", () => made.remove());
  document.body.append(made);
  made.showModal();
  return made;
}
