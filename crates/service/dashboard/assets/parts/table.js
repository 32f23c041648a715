// Tables that keep their rows while values change. If the page is too narrow, each row becomes a card.

import { h, put, reconcile, set } from "./dom.js";

/**
 * @template T
 * @typedef {object} Column
 * @property {string} title
 * @property {(item: T) => any} cell content of the cell: a text, a node, or an array of texts and nodes
 * @property {(item: T) => string} [renderKey] a text; the cell is created again when this text changes. By default the
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
 * @param {number} [options.roomRem] width in rem below which rows become cards
 * @returns {{element: HTMLElement, show: (items: T[]) => void}}
 */
export function table({ caption, columns, keyOf, empty, testid, rowAttributes, roomRem = columns.length * 8 }) {
  const rows = h("tbody", { role: "rowgroup" });
  const heads = columns.map((column) => h("th", { scope: "col", role: "columnheader", class: column.kind }, column.title));
  // The roles are explicit, because a browser may remove them when CSS turns the table into cards.
  const tableNode = h("table", { role: "table" }, h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ...heads)), rows);
  const emptyNote = h("p", { class: "empty", hidden: true }, empty);
  const show = (items) => {
    reconcile(rows, items, keyOf, () => makeRow(columns, testid, rowAttributes));
    tableNode.hidden = items.length === 0;
    emptyNote.hidden = items.length > 0;
  };
  tableNode.hidden = true;
  const element = h("div", { class: "table" }, tableNode, emptyNote);
  new ResizeObserver(() => element.classList.toggle("cards", element.clientWidth < roomRem * remPx())).observe(element);
  return { element, show };
}

const remPx = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

function makeRow(columns, testid, rowAttributes) {
  const renderKeys = columns.map(() => null);
  // Each cell contains one box, which is shown beside the column's name when the row is a card.
  const boxes = columns.map(() => h("div", { class: "cell" }));
  const node = h("tr", { role: "row", "data-testid": testid }, ...columns.map((column, index) =>
    index === 0
      ? h("th", { scope: "row", role: "rowheader", class: column.kind }, boxes[index])
      : h("td", { role: "cell", class: column.kind, "data-label": column.title }, boxes[index])));
  const update = (item) => {
    if (rowAttributes) set(node, rowAttributes(item));
    columns.forEach((column, index) => {
      // An unchanged cell is not created again: a new element would lose the focus, and a screen reader would read it again.
      const renderKey = (column.renderKey ?? JSON.stringify)(item);
      if (renderKey === renderKeys[index]) return;
      renderKeys[index] = renderKey;
      put(boxes[index], column.cell(item));
    });
  };
  return { node, update };
}
