// Names and values, side by side.

import { h } from "./dom.js";

/**
 * @param {[string, any][]} pairs
 * @returns {HTMLElement}
 */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
