// Pages of a list, by the cursors of the API. The address contains the cursor, so that "back" returns to the page.

import { h, set } from "./dom.js";

/**
 * @param {object} options
 * @param {string} options.itemsName for example "devices"
 * @param {(after: string | null) => string} options.href the address of the page after a cursor; null for the first page
 * @param {string | null} options.after the cursor of this page
 * @returns {{element: HTMLElement, show: (count: number, next: string | null) => void}}
 */
export function pager({ itemsName, href, after }) {
  const countText = h("span", { class: "muted", "data-testid": "page-count" });
  const first = h("a", { class: "button", href: href(null), hidden: !after, "data-testid": "first-page" }, "First page");
  const next = h("a", { class: "button", hidden: true, "data-testid": "next-page" }, "Next page");
  const element = h("nav", { class: "pager", "aria-label": `Pages of ${itemsName}` }, countText, first, next);
  const show = (count, cursor) => {
    countText.textContent = after || cursor ? `${count} ${itemsName} on this page` : `${count} ${itemsName}`;
    set(next, { hidden: !cursor, href: cursor ? href(cursor) : null });
  };
  return { element, show };
}
