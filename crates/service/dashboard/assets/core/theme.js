// Dark or light theme: the system's setting or the user's choice. This script is loaded first, so that the page never
// appears in the wrong theme.

const KEY = "linewarden-theme";

/** The themes and their labels. */
export const THEMES = { system: "As system", light: "Light", dark: "Dark" };

/** @returns {string} one of THEMES */
export function chosenTheme() {
  try {
    const theme = localStorage.getItem(KEY);
    return Object.hasOwn(THEMES, theme ?? "") ? theme : "system";
  } catch {
    // If storage is forbidden, the choice lasts as long as the page.
    return document.documentElement.dataset.theme ?? "system";
  }
}

/** @param {string} theme one of THEMES */
export function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // Storage is forbidden.
  }
}

document.documentElement.dataset.theme = chosenTheme();
