// Dark or light: as the system has it, or as the reader has chosen. Loaded first, so that no page flashes up wrongly.

const KEY = "linewarden-theme";

/** The choices, and how they are called. */
export const THEMES = { system: "As system", light: "Light", dark: "Dark" };

/** @returns {string} one of THEMES */
export function chosenTheme() {
  try {
    const kept = localStorage.getItem(KEY);
    return Object.hasOwn(THEMES, kept ?? "") ? kept : "system";
  } catch {
    // Storage can be forbidden; then the choice lasts as long as the page.
    return document.documentElement.dataset.theme ?? "system";
  }
}

/** @param {string} theme one of THEMES */
export function chooseTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // See above.
  }
}

document.documentElement.dataset.theme = chosenTheme();
