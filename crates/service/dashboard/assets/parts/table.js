// Tables that keep their rows while values change. If the page is too narrow, each row becomes a card.

import { h, put, reconcile, set } from "./dom.js";

/**
 * @template T
 * @typedef {object} Column
 * @property {string} title
 * @property {(item: T) => any} cell content of the cell: a text, a node or several
 * @property {(item: T) => string} [sign] a text that changes when the cell must be created again; by default the
 *   item's JSON
 * @property {"number"} [kind]
 */

/**
 * @template T
 * @param {object} options
 * @param {string} options.caption for screen readers, not visible
 * @param {Column<T>[]} options.columns the first column contains the row headings
 * @param {(item: T) => string | number} options.keyOf
 * @param {string} options.empty text for a table without rows
 * @param {string} [options.testid] of each row
 * @param {(item: T) => Record<string, any>} [options.rowAttributes]
 * @param {number} [options.roomRem] below this width, rows become cards
 * @returns {{element: HTMLElement, show: (items: T[]) => void}}
 */
export function table({ caption, columns, keyOf, empty, testid, rowAttributes, roomRem = columns.length * 8 }) {
  const rows = h("tbody", { role: "rowgroup" });
  const heads = columns.map((column) => h("th", { scope: "col", role: "columnheader", class: column.kind }, column.title));
  // The roles are explicit, because a browser may remove them when CSS turns the table into cards.
  const tableNode = h("table", { role: "table" }, h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads)), rows);
  const none = h("p", { class: "empty", hidden: true }, empty);
  const show = (items) => {
    reconcile(rows, items, keyOf, () => makeRow(columns, testid, rowAttributes));
    tableNode.hidden = items.length === 0;
    none.hidden = items.length > 0;
  };
  tableNode.hidden = true;
  const element = h("div", { class: "table" }, tableNode, none);
  new ResizeObserver(() => element.classList.toggle("cards", element.clientWidth < roomRem * remPx())).observe(element);
  return { element, show };
}

const remPx = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

function makeRow(columns, testid, rowAttributes) {
  const signs = columns.map(() => null);
  // Each cell contains one box, which is shown beside the column's name when the row is a card.
  const boxes = columns.map(() => h("div", { class: "cell" }));
  const node = h("tr", { role: "row", "data-testid": testid }, ...columns.map((column, index) =>
    index === 0
      ? h("th", { scope: "row", role: "rowheader", class: column.kind }, boxes[index])
      : h("td", { role: "cell", class: column.kind, "data-label": column.title }, boxes[index])));
  const update = (item) => {
    if (rowAttributes) set(node, rowAttributes(item));
    columns.forEach((column, index) => {
      // A cell is created again only when it changes: a new element would lose the focus and be read again.
      const sign = (column.sign ?? JSON.stringify)(item);
      if (sign === signs[index]) return;
      signs[index] = sign;
      put(boxes[index], column.cell(item));
    });
  };
  return { node, update };
}
