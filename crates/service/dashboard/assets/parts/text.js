// Shows untrusted text, such as names and reasons: invisible characters and direction controls are shown as escapes,
// and long text is shortened, with a button that shows the full text.

import { freshId, h, put } from "./dom.js";

// Controls, format characters (which include bidi controls and zero-width characters), separators of lines and paragraphs,
// lone surrogates, private and unassigned characters, and four letters without a visible glyph.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}\u115f\u1160\u3164\uffa0]/gu;
const UNSEEN_EXCEPT_LINE_FEED = new RegExp(`(?!\\n)${UNSEEN.source}`, "gu");

/**
 * The text with escapes such as \u202e in place of invisible characters: for titles and labels.
 * @param {string} text
 * @returns {string}
 */
export function escapeInvisible(text) {
  return String(text).replace(UNSEEN, escape);
}

/**
 * The text as an element. Escapes are marked, so that they differ from the same characters as plain text.
 * @param {string | null | undefined} text
 * @param {{lines?: boolean}} [options] lines: line breaks are kept
 * @returns {HTMLElement}
 */
export function untrustedText(text, { lines = false } = {}) {
  const full = String(text ?? "");
  const parts = [];
  let start = 0;
  for (const match of full.matchAll(lines ? UNSEEN_EXCEPT_LINE_FEED : UNSEEN)) {
    parts.push(full.slice(start, match.index), h("span", { class: "escape" }, escape(match[0])));
    start = match.index + match[0].length;
  }
  return h("bdi", { class: lines ? "foreign lines" : "foreign" }, ...parts.filter((part) => part !== ""), full.slice(start));
}

/**
 * A name on one line: a long name is shortened, and the title contains the full name.
 * @param {string | null | undefined} name
 * @param {string} fallback shown if there is no name
 * @returns {HTMLElement}
 */
export function nameText(name, fallback) {
  if (!name) return h("span", { class: "name muted" }, fallback);
  const cut = shorten(name, 200);
  return h("span", { class: "name", title: escapeInvisible(shorten(name, 2000)) }, untrustedText(cut));
}

/**
 * A text of any length: a long text is shortened, and a button shows the full text.
 * @param {string | null | undefined} text
 * @param {number} [limit]
 * @returns {HTMLElement}
 */
export function longText(text, limit = 120) {
  const full = String(text ?? "");
  const cut = shorten(full, limit);
  if (cut === full) return untrustedText(full, { lines: true });
  const id = freshId("text");
  const body = h("span", { id }, untrustedText(cut, { lines: true }));
  const button = h("button", { type: "button", class: "link", "aria-expanded": "false", "aria-controls": id }, "show all");
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "show less" : "show all";
    put(body, untrustedText(open ? full : cut, { lines: true }));
  });
  return h("span", { class: "long-text" }, body, " ", button);
}

/**
 * At most `limit` characters; a longer text ends with "…". Never splits a character.
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
