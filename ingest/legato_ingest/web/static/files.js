// What the page has loaded, as a file or on the clipboard.

import { element, openDialog } from "./elements.js";

export function downloadCsv(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  element("a", { href: url, download: `${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

// Browsers have a clipboard only for pages over HTTPS and on loopback; elsewhere the text is shown, to be copied by hand.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    openDialog("Text to copy", [element("pre", { tabindex: "0" }, text)]);
  }
}
