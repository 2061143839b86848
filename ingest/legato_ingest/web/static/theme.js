// Dark or light: the system's choice until the user chooses.

export const theme = () => document.documentElement.dataset.theme;

export function applyTheme() {
  document.documentElement.dataset.theme = stored("theme") || (matchMedia("(prefers-color-scheme: light)").matches ? "light" : "dark");
}

export function switchTheme() {
  document.documentElement.dataset.theme = theme() === "dark" ? "light" : "dark";
  try {
    window.localStorage.setItem("theme", theme());
  } catch {
    // Storage can be disabled; the theme then lasts as long as the page.
  }
}

function stored(name) {
  try {
    return window.localStorage.getItem(name);
  } catch {
    return null;
  }
}
