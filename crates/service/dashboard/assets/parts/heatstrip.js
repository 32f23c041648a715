// Rounds as a heat strip: a row for each gateway and group, a cell for each round. The share of devices in state ok is
// shown by color, pattern and number. The Tab key stops at one cell of the strip; arrow keys move from cell to cell.

import { h, put, reconcile, set } from "./dom.js";
import { untrustedText, escapeInvisible } from "./text.js";
import { ageText, count, duration, percent, timeNode } from "./format.js";
import { tickingElement } from "./ticking.js";
import { gatewayName } from "../core/gateways.js";
import { roundKey } from "../core/rounds.js";
import { controllerNowS } from "../core/clock.js";

const CELL_PX = 30;
/** Minimum share of devices in state ok, and the suffix of the CSS class. */
const LEVELS = [[1, "all"], [0.99, "most"], [0.9, "many"], [0.5, "half"], [0, "few"]];

/**
 * @returns {{element: HTMLElement, show: (rows: import("../core/rounds.js").StripRow[]) => void}}
 */
export function heatStrip() {
  const grid = h("div", { role: "grid", class: "heat", "aria-label": "Rounds: a row for each gateway and group, the newest round last; arrow keys move" });
  const detail = h("p", { class: "heat-detail muted", "aria-hidden": "true" }, "Point at a round, or select one with the arrow keys.");
  const emptyNote = h("p", { class: "empty", hidden: true }, "No rounds yet.");
  const element = h("div", {}, grid, emptyNote, detail, legend());
  let rows = [];

  const draw = () => {
    const hadFocus = grid.contains(document.activeElement);
    const cellsPerRow = Math.max(4, Math.floor(stripWidth(grid) / CELL_PX));
    reconcile(grid, rows, (row) => row.key, (row) => makeRow(row));
    for (const [index, row] of rows.entries()) drawCells(grid.children[index].lastChild, row.rounds.slice(0, cellsPerRow).reverse());
    keepOneTabStop(grid, hadFocus);
    emptyNote.hidden = rows.length > 0;
  };
  const showDetail = (event) => {
    const round = roundOfCell.get(event.target.closest?.("[role=gridcell]"));
    if (round) put(detail, ...describe(round));
  };
  grid.addEventListener("keydown", (event) => moveFocus(grid, event));
  grid.addEventListener("pointerover", showDetail);
  grid.addEventListener("focusin", (event) => {
    showDetail(event);
    makeTabStop(grid, event.target);
  });
  new ResizeObserver(() => draw()).observe(element);
  const show = (next) => {
    rows = next;
    draw();
  };
  return { element, show };
}

/** The round that a cell shows. */
const roundOfCell = new WeakMap();

function makeRow(row) {
  let newest = null;
  const head = h("div", { role: "rowheader", class: "heat-head" },
    h("span", { class: "name", title: escapeInvisible(`${gatewayName(row.gateway)} · ${row.group}`) }, untrustedText(gatewayName(row.gateway)), " · ", untrustedText(row.group)),
    tickingElement((element) => {
      if (newest) showAge(element, newest);
    }, { class: "heat-age" }));
  const node = h("div", { role: "row", class: "heat-row" }, head, h("div", { class: "heat-cells", role: "presentation" }));
  const update = (next) => {
    newest = next;
    showAge(head.lastChild, next);
  };
  return { node, update };
}

function showAge(element, row) {
  const age = controllerNowS() - row.rounds[0].ended_at_s;
  const overdue = age > row.overdueAfterS;
  element.textContent = overdue ? `stale, last round ${ageText(age)} ago` : `${ageText(Math.max(age, 0))} ago`;
  element.classList.toggle("stale-mark", overdue);
  set(element, { "data-testid": overdue ? "stale-mark" : null });
  element.closest(".heat-row")?.toggleAttribute("data-stale", overdue);
}

function drawCells(cells, rounds) {
  reconcile(cells, rounds, roundKey, () => {
    const node = h("div", { role: "gridcell", tabindex: "-1", "data-testid": "heat-cell" });
    return { node, update: (round) => drawCell(node, round) };
  });
}

function drawCell(node, round) {
  const share = round.requested > 0 ? round.ok / round.requested : null;
  const level = share === null ? "none" : LEVELS.find(([minimum]) => share >= minimum)[1];
  roundOfCell.set(node, round);
  set(node, { class: `heat-cell heat-${level}`, "aria-label": labelText(round) });
  node.textContent = share === null ? "" : wholePercent(round);
}

/** The share of devices in state ok in percent, rounded down, so that 100 means all devices. */
const wholePercent = ({ ok, requested }) => String(Math.floor((ok / requested) * 100));

function labelText(round) {
  if (!(round.requested > 0)) return `Round ${count(round.number)}, no device was attested`;
  return `Round ${count(round.number)}, ${wholePercent(round)} % ok: ${count(round.ok)} of ${count(round.requested)}, ${count(round.late)} late, ${count(round.missed)} missed`;
}

function describe(round) {
  const share = round.requested > 0 ? percent(round.ok / round.requested) : "no device";
  return [
    untrustedText(gatewayName(round.gateway)), " · ", untrustedText(round.group), ` · round ${count(round.number)}, period ${count(round.period)} · `,
    timeNode(round.started_at_s, { short: true }), " to ", timeNode(round.ended_at_s, { short: true }),
    ` · devices ${count(round.requested)}, ok ${count(round.ok)} (${share}), late ${count(round.late)}, missed ${count(round.missed)}`,
    ` · last proof after ${Number.isFinite(round.last_proof_ms) ? duration(round.last_proof_ms * 1000) : "unknown time"}`,
  ];
}

function legend() {
  const texts = { all: "all ok", most: "99 % or more", many: "90 % or more", half: "50 % or more", few: "less" };
  const items = Object.entries(texts).map(([level, text]) => h("li", {}, h("span", { class: `heat-cell heat-key heat-${level}`, "aria-hidden": "true" }), text));
  return h("ul", { class: "legend", "aria-label": "Share of devices in state ok; the number in a cell is this share in percent" }, ...items);
}

function stripWidth(grid) {
  const cells = grid.querySelector(".heat-cells");
  return cells ? cells.clientWidth : grid.clientWidth * 0.7;
}

const allCells = (grid) => [...grid.querySelectorAll("[role=gridcell]")];

function makeTabStop(grid, cell) {
  for (const other of grid.querySelectorAll("[role=gridcell][tabindex='0']")) set(other, { tabindex: "-1" });
  set(cell, { tabindex: "0" });
}

/** Keeps exactly one cell reachable by Tab, and keeps the focus in the strip if the focused cell was removed. */
function keepOneTabStop(grid, hadFocus) {
  const stop = grid.querySelector("[role=gridcell][tabindex='0']") ?? allCells(grid).at(0);
  if (!stop) return;
  makeTabStop(grid, stop);
  if (hadFocus && !grid.contains(document.activeElement)) stop.focus();
}

function moveFocus(grid, event) {
  const cell = event.target.closest("[role=gridcell]");
  if (!cell || event.altKey || event.ctrlKey || event.metaKey) return;
  const row = [...cell.parentElement.children];
  const rows = [...grid.querySelectorAll(".heat-cells")];
  const [column, rowIndex] = [row.indexOf(cell), rows.indexOf(cell.parentElement)];
  // Rows are aligned at the newest round, so columns are counted from the end of a row.
  const cellInRow = (index) => rows[index] && [...rows[index].children].at(Math.max(column - row.length, -rows[index].children.length));
  const targets = {
    ArrowLeft: row[column - 1], ArrowRight: row[column + 1], Home: row[0], End: row.at(-1),
    ArrowUp: cellInRow(rowIndex - 1), ArrowDown: cellInRow(rowIndex + 1),
  };
  if (!Object.hasOwn(targets, event.key)) return;
  event.preventDefault();
  targets[event.key]?.focus();
}
