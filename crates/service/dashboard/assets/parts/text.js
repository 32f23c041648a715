// Shows text that others wrote, such as names and reasons: what is invisible or turns the writing direction is shown
// as an escape, and what is long is cut, with all of it one key away.

import { freshId, h, put } from "./dom.js";

// Controls, format characters (with them all bidi controls and zero-width ones), separators of lines and paragraphs,
// lone surrogates, private and unassigned characters, and four letters that show as nothing.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}\u115f\u1160\u3164\uffa0]/gu;
const UNSEEN_BUT_LINES = new RegExp(`(?!\\n)${UNSEEN.source}`, "gu");

/**
 * The text with escapes such as \u202e in place of characters that do not show: for titles and labels.
 * @param {string} text
 * @returns {string}
 */
export function visible(text) {
  return String(text).replace(UNSEEN, escape);
}

/**
 * The text as an element, its escapes marked, so that they differ from the same letters typed out.
 * @param {string | null | undefined} text
 * @param {{lines?: boolean}} [options] lines: line breaks are kept
 * @returns {HTMLElement}
 */
export function foreign(text, { lines = false } = {}) {
  const whole = String(text ?? "");
  const parts = [];
  let from = 0;
  for (const match of whole.matchAll(lines ? UNSEEN_BUT_LINES : UNSEEN)) {
    parts.push(whole.slice(from, match.index), h("span", { class: "escape" }, escape(match[0])));
    from = match.index + match[0].length;
  }
  return h("bdi", { class: lines ? "foreign lines" : "foreign" }, ...parts.filter((part) => part !== ""), whole.slice(from));
}

/**
 * A name on one line: what does not fit is cut by the page, and its title holds all of it.
 * @param {string | null | undefined} name
 * @param {string} fallback shown where there is no name
 * @returns {HTMLElement}
 */
export function nameText(name, fallback) {
  if (!name) return h("span", { class: "name muted" }, fallback);
  const cut = shorten(name, 200);
  return h("span", { class: "name", title: visible(shorten(name, 2000)) }, foreign(cut));
}

/**
 * A text of any length: a long one is cut, and a button shows all of it.
 * @param {string | null | undefined} text
 * @param {number} [limit]
 * @returns {HTMLElement}
 */
export function longText(text, limit = 120) {
  const whole = String(text ?? "");
  const cut = shorten(whole, limit);
  if (cut === whole) return foreign(whole, { lines: true });
  const id = freshId("text");
  const body = h("span", { id }, foreign(cut, { lines: true }));
  const button = h("button", { type: "button", class: "link", "aria-expanded": "false", "aria-controls": id }, "show all");
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "show less" : "show all";
    put(body, foreign(open ? whole : cut, { lines: true }));
  });
  return h("span", { class: "long-text" }, body, " ", button);
}

/**
 * At most so many characters, the last of them "…" if there were more. Never cuts a character in half.
 * @param {string} text
 * @param {number} limit
 * @returns {string}
 */
export function shorten(text, limit) {
  if (text.length <= limit) return text;
  const characters = Array.from(text.slice(0, limit * 2));
  return `${characters.slice(0, limit - 1).join("")}…`;
}

function escape(character) {
  const code = character.codePointAt(0).toString(16);
  return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
}
