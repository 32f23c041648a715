// Verdicts by reason: total, current rate and meaning.

import { h } from "./dom.js";
import { bar } from "./bars.js";
import { table } from "./table.js";
import { count, known, rate } from "./format.js";
import { VERDICTS } from "../core/verdicts.js";

const ORDER = ["reply", "pass", "drop", "other"];
const CALLED = { reply: "replied", pass: "passed", other: "unknown" };
/** The controller's sum of all verdicts that it does not know. */
const OTHER = "Verdicts of newer gateways that this controller does not know.";

/**
 * @param {{withRates?: boolean}} [options]
 * @returns {{element: HTMLElement, show: (verdicts: Record<string, number> | null, rateOf?: (name: string) => number | null) => void}}
 */
export function verdictTable({ withRates = true } = {}) {
  const columns = [
    { title: "Verdict", sign: ({ name }) => name, cell: nameCell },
    { title: "Frame", sign: ({ action }) => action, cell: ({ action, name }) => CALLED[action] ?? (isRefusal(name) ? "dropped" : "consumed") },
    withRates && { title: "Per second, last minute", kind: "number", sign: ({ perSecond }) => rate(perSecond), cell: ({ perSecond }) => known(rate(perSecond)) },
    { title: "Since start", kind: "number", sign: ({ total }) => count(total), cell: ({ total }) => count(total) },
    { title: "Share of its kind", sign: ({ share }) => share.toFixed(3), cell: shareCell },
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
  const all = Object.entries(verdicts)
    .filter(([, total]) => Number.isFinite(total) && total > 0)
    .map(([name, total]) => ({ name, total, action: actionOf(name), perSecond: rateOf(name) }));
  const sums = Object.fromEntries(ORDER.map((action) => [action, all.filter((one) => one.action === action).reduce((sum, one) => sum + one.total, 0)]));
  return all
    .map((one) => ({ ...one, share: one.total / sums[one.action] }))
    .sort((one, other) => ORDER.indexOf(one.action) - ORDER.indexOf(other.action) || other.total - one.total || (one.name < other.name ? -1 : 1));
}

/** The action on the frame; for a name that is not in the list, the prefix of the name determines it. */
function actionOf(name) {
  if (Object.hasOwn(VERDICTS, name)) return VERDICTS[name][0];
  return ORDER.find((action) => name.startsWith(action)) ?? "drop";
}

/** Some valid frames are consumed without a reply, such as a proof that verified. */
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
