// One live value with its name, in large type.

import { h, put } from "./dom.js";
import { textOrUnknown, UNKNOWN } from "./format.js";

/**
 * @param {string} title
 * @param {object} options
 * @param {string} options.testid of the number
 * @param {(status: any) => string} options.value
 * @param {(status: any) => string} [options.total] the maximum of the value, shown as "of TOTAL"
 * @returns {{element: HTMLElement, show: (status: any | null) => void}}
 */
export function tile(title, { testid, value, total }) {
  const number = h("span", { class: "tile-value", "data-testid": testid });
  const totalNode = h("span", { class: "muted" });
  const element = h("dl", { class: "tile" }, h("dt", {}, title), h("dd", {}, number, " ", totalNode));
  let displayedText = null;
  const show = (status) => {
    const text = status ? value(status) : UNKNOWN;
    const totalText = status && total ? `of ${total(status)}` : "";
    if (displayedText === text + totalText) return;
    displayedText = text + totalText;
    put(number, textOrUnknown(text));
    totalNode.textContent = totalText;
  };
  show(null);
  return { element, show };
}
