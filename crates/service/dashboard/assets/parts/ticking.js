// Texts that change with time, such as ages: made anew each second while they stand in the page.

import { h } from "./dom.js";
import { onTick } from "../core/stale.js";

const updates = new WeakMap();

/**
 * An element that `update` is called for: now, and each second.
 * @param {(element: HTMLElement) => void} update
 * @param {Record<string, any>} [attributes]
 * @returns {HTMLElement}
 */
export function ticking(update, attributes = {}) {
  const element = h("span", { ...attributes, "data-ticking": true });
  updates.set(element, update);
  update(element);
  return element;
}

// One listener for all of them, and weak keys: an element that was taken out of the page leaves nothing behind.
onTick(() => {
  for (const element of document.querySelectorAll("[data-ticking]")) updates.get(element)?.(element);
}, new AbortController().signal);
