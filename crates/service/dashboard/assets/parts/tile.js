// One live value with its name, in large type.

import { h, put } from "./dom.js";
import { known, UNKNOWN } from "./format.js";

/**
 * @param {string} title
 * @param {object} options
 * @param {string} options.testid of the number
 * @param {(status: any) => string} options.value
 * @param {(status: any) => string} [options.of] total
 * @returns {{element: HTMLElement, show: (status: any | null) => void}}
 */
export function tile(title, { testid, value, of }) {
  const number = h("span", { class: "tile-value", "data-testid": testid });
  const totalNode = h("span", { class: "muted" });
  const element = h("dl", { class: "tile" }, h("dt", {}, title), h("dd", {}, number, " ", totalNode));
  let displayed = null;
  const show = (status) => {
    const text = status ? value(status) : UNKNOWN;
    const total = status && of ? `of ${of(status)}` : "";
    if (displayed === text + total) return;
    displayed = text + total;
    put(number, known(text));
    totalNode.textContent = total;
  };
  show(null);
  return { element, show };
}
