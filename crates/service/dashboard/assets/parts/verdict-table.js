// Verdicts by reason: total, current rate and meaning.

import { h } from "./dom.js";
import { bar } from "./bars.js";
import { table } from "./table.js";
import { count, textOrUnknown, rate } from "./format.js";
import { VERDICTS } from "../core/verdicts.js";

const ORDER = ["reply", "pass", "drop", "other"];
const ACTION_NAMES = { reply: "replied", pass: "passed", other: "unknown" };
/** The meaning of `other`, the controller's sum of all verdicts with unknown names. */
const OTHER = "Verdicts of newer gateways that this controller does not know.";

/**
 * @param {{withRates?: boolean}} [options]
 * @returns {{element: HTMLElement, show: (verdicts: Record<string, number> | null, rateOf?: (name: string) => number | null) => void}}
 */
export function verdictTable({ withRates = true } = {}) {
  const columns = [
    { title: "Verdict", renderKey: ({ name }) => name, cell: nameCell },
    { title: "Frame", renderKey: ({ action }) => action, cell: ({ action, name }) => ACTION_NAMES[action] ?? (isRefusal(name) ? "dropped" : "consumed") },
    withRates && { title: "Per second, last minute", kind: "number", renderKey: ({ perSecond }) => rate(perSecond), cell: ({ perSecond }) => textOrUnknown(rate(perSecond)) },
    { title: "Since start", kind: "number", renderKey: ({ total }) => count(total), cell: ({ total }) => count(total) },
    { title: "Share of its kind", renderKey: ({ share }) => share.toFixed(3), cell: shareCell },
  ];
  const { element, show: showRows } = table({
    caption: "Verdicts by reason",
    columns: columns.filter(Boolean),
    keyOf: ({ name }) => name,
    empty: "No verdicts yet.",
    testid: "verdict-row",
    roomRem: 40,
    rowAttributes: ({ name }) => ({ "data-verdict": name }),
  });
  const show = (verdicts, rateOf = () => null) => showRows(entries(verdicts ?? {}, rateOf));
  return { element, show };
}

function entries(verdicts, rateOf) {
  const rows = Object.entries(verdicts)
    .filter(([, total]) => Number.isFinite(total) && total > 0)
    .map(([name, total]) => ({ name, total, action: actionOf(name), perSecond: rateOf(name) }));
  const sums = Object.fromEntries(ORDER.map((action) => [action, rows.filter((row) => row.action === action).reduce((sum, row) => sum + row.total, 0)]));
  return rows
    .map((row) => ({ ...row, share: row.total / sums[row.action] }))
    .sort((a, b) => ORDER.indexOf(a.action) - ORDER.indexOf(b.action) || b.total - a.total || (a.name < b.name ? -1 : 1));
}

/** The action on the frame. For a name that is not in the list, the prefix of the name determines the action. */
function actionOf(name) {
  if (Object.hasOwn(VERDICTS, name)) return VERDICTS[name][0];
  return ORDER.find((action) => name.startsWith(action)) ?? "drop";
}

/** Whether the gateway refused the frame. Other frames with the action `drop` are consumed, such as a proof that verified. */
const isRefusal = (name) => name.startsWith("drop");

function nameCell({ name }) {
  const meaning = Object.hasOwn(VERDICTS, name) ? VERDICTS[name][1] : name === "other" && OTHER;
  return [h("code", {}, name), meaning && h("span", { class: "meaning muted" }, meaning)];
}

function shareCell({ share, name }) {
  const { element, show } = bar(isRefusal(name) ? "warn" : "plain");
  show(share);
  return element;
}
