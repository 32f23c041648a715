// Tables whose rows are kept while their values change. Where there is too little room each row becomes a card.

import { h, put, reconcile, set } from "./dom.js";

/**
 * @template T
 * @typedef {object} Column
 * @property {string} title
 * @property {(item: T) => any} cell what stands in the cell: a text, a node or several
 * @property {(item: T) => string} [sign] a text that changes when the cell must be made anew; without it, the item's
 *   JSON does
 * @property {"number"} [kind]
 */

/**
 * @template T
 * @param {object} options
 * @param {string} options.caption read before the table, not seen
 * @param {Column<T>[]} options.columns the first is the heading of its row
 * @param {(item: T) => string | number} options.keyOf
 * @param {string} options.empty what is shown where there are no rows
 * @param {string} [options.testid] of each row
 * @param {(item: T) => Record<string, any>} [options.rowAttributes]
 * @param {number} [options.roomRem] with less room than this, rows become cards
 * @returns {{element: HTMLElement, show: (items: T[]) => void}}
 */
export function table({ caption, columns, keyOf, empty, testid, rowAttributes, roomRem = columns.length * 8 }) {
  const rows = h("tbody", { role: "rowgroup" });
  const heads = columns.map((column) => h("th", { scope: "col", role: "columnheader", class: column.kind }, column.title));
  // The roles are named, because a browser may take them away where the style makes cards out of the table.
  const whole = h("table", { role: "table" }, h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads)), rows);
  const none = h("p", { class: "empty", hidden: true }, empty);
  const show = (items) => {
    reconcile(rows, items, keyOf, () => makeRow(columns, testid, rowAttributes));
    whole.hidden = items.length === 0;
    none.hidden = items.length > 0;
  };
  whole.hidden = true;
  const element = h("div", { class: "table" }, whole, none);
  new ResizeObserver(() => element.classList.toggle("cards", element.clientWidth < roomRem * remPx())).observe(element);
  return { element, show };
}

const remPx = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

function makeRow(columns, testid, rowAttributes) {
  const signs = columns.map(() => null);
  // Each cell has one box inside, which stands beside the column's name where the row is a card.
  const boxes = columns.map(() => h("div", { class: "cell" }));
  const node = h("tr", { role: "row", "data-testid": testid }, ...columns.map((column, index) =>
    index === 0
      ? h("th", { scope: "row", role: "rowheader", class: column.kind }, boxes[index])
      : h("td", { role: "cell", class: column.kind, "data-label": column.title }, boxes[index])));
  const update = (item) => {
    if (rowAttributes) set(node, rowAttributes(item));
    columns.forEach((column, index) => {
      // A cell is only made anew when it changes: a new element would lose the focus and be read again.
      const sign = (column.sign ?? JSON.stringify)(item);
      if (sign === signs[index]) return;
      signs[index] = sign;
      put(boxes[index], column.cell(item));
    });
  };
  return { node, update };
}
