// Texts that change with time, such as ages: updated each second while they are in the page.

import { h } from "./dom.js";
import { onTick } from "../core/stale.js";

const updates = new WeakMap();

/**
 * An element for which `update` is called now and each second.
 * @param {(element: HTMLElement) => void} update
 * @param {Record<string, any>} [attributes]
 * @returns {HTMLElement}
 */
export function tickingElement(update, attributes = {}) {
  const element = h("span", { ...attributes, "data-ticking": true });
  updates.set(element, update);
  update(element);
  return element;
}

// One listener for all elements, with weak keys: an element that was removed from the page is garbage-collected.
onTick(() => {
  for (const element of document.querySelectorAll("[data-ticking]")) updates.get(element)?.(element);
}, new AbortController().signal);
