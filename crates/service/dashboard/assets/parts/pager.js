// Paging through a list by the cursors that the API gives: the address keeps the page, so that "back" leads to it.

import { h, set } from "./dom.js";

/**
 * @param {object} options
 * @param {string} options.what for instance "devices"
 * @param {(after: string | null) => string} options.href the address of the page after a cursor; null for the first
 * @param {string | null} options.after the cursor of this page
 * @returns {{element: HTMLElement, show: (count: number, next: string | null) => void}}
 */
export function pager({ what, href, after }) {
  const said = h("span", { class: "muted", "data-testid": "page-count" });
  const first = h("a", { class: "button", href: href(null), hidden: !after, "data-testid": "first-page" }, "First page");
  const next = h("a", { class: "button", hidden: true, "data-testid": "next-page" }, "Next page");
  const element = h("nav", { class: "pager", "aria-label": `Pages of ${what}` }, said, first, next);
  const show = (count, cursor) => {
    said.textContent = after || cursor ? `${count} ${what} on this page` : `${count} ${what}`;
    set(next, { hidden: !cursor, href: cursor ? href(cursor) : null });
  };
  return { element, show };
}
