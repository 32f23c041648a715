// A panel: a section of a view with its heading, the stale mark of its values, its error, and its body.

import { freshId, h, set } from "./dom.js";
import { escapeInvisible } from "./text.js";
import { staleMark } from "../core/stale.js";

/**
 * @param {string} title
 * @param {{class?: string, testid?: string, aside?: any}} [options] aside: content beside the heading
 * @param {...any} children
 * @returns {{element: HTMLElement, body: HTMLElement, head: HTMLElement, fail: (fault: Error | null) => void,
 *   markWhenStale: (sources: import("../core/stale.js").Source | import("../core/stale.js").Source[], signal: AbortSignal) => void}}
 *   `markWhenStale` marks the panel while one of the sources is stale
 */
export function panel(title, options = {}, ...children) {
  const id = freshId("panel");
  const head = h("div", { class: "panel-head" }, h("h2", { id }, title), options.aside);
  const error = errorLine();
  const body = h("div", { class: "panel-body" }, ...children);
  const attributes = { class: `panel ${options.class ?? ""}`.trim(), "aria-labelledby": id, "data-testid": options.testid };
  const element = h("section", attributes, head, error.element, body);
  const markWhenStale = (sources, signal) => head.append(staleMark(element, sources, signal));
  return { element, body, head, fail: error.fail, markWhenStale };
}

/**
 * A line for an error. A screen reader reads an error when the error appears, and not again while the text is unchanged.
 * @returns {{element: HTMLElement, fail: (fault: Error | null) => void}}
 */
export function errorLine() {
  const element = h("p", { class: "error", role: "alert", "data-testid": "error", hidden: true });
  const fail = (fault) => {
    const text = fault ? escapeInvisible(fault.message) : "";
    if (element.textContent === text) return;
    element.textContent = text;
    set(element, { hidden: text === "" });
  };
  return { element, fail };
}

/**
 * The heading of a view, with content beside it.
 * @param {any} title
 * @param {...any} aside
 * @returns {HTMLElement}
 */
export function viewHead(title, ...aside) {
  return h("div", { class: "view-head" }, h("h1", { tabindex: "-1" }, title), ...aside);
}
