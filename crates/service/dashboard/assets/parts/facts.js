// Names and values, side by side.

import { h } from "./dom.js";

/**
 * @param {[string, any][]} pairs
 * @returns {HTMLElement}
 */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/**
 * Any JSON as nested names and values; for details whose form is not fixed.
 * @param {any} value
 * @returns {any}
 */
export function anyValue(value, depth = 0) {
  if (value === null || typeof value !== "object") return String(value);
  const pairs = Object.entries(value).slice(0, 200);
  if (pairs.length === 0) return "none";
  return depth > 5 ? JSON.stringify(value) : facts(pairs.map(([name, inner]) => [name, anyValue(inner, depth + 1)]));
}
