// Verdicts by reason: how many, how many a second of late, and what each means.

import { h } from "./dom.js";
import { bar } from "./bars.js";
import { table } from "./table.js";
import { count, known, rate } from "./format.js";
import { VERDICTS } from "../core/verdicts.js";

const ORDER = ["reply", "pass", "drop", "other"];
const CALLED = { reply: "answered", pass: "passed", other: "unknown" };
/** The controller's sum of all verdicts that it does not know. */
const OTHER = "Verdicts of newer gateways, which this controller does not know.";

/**
 * @param {{withRates?: boolean}} [options]
 * @returns {{element: HTMLElement, show: (verdicts: Record<string, number> | null, rateOf?: (name: string) => number | null) => void}}
 */
export function verdictTable({ withRates = true } = {}) {
  const columns = [
    { title: "Verdict", sign: ({ name }) => name, cell: nameCell },
    { title: "Frame", sign: ({ fate }) => fate, cell: ({ fate, name }) => CALLED[fate] ?? (isRefusal(name) ? "dropped" : "consumed") },
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
    .map(([name, total]) => ({ name, total, fate: fateOf(name), perSecond: rateOf(name) }));
  const sums = Object.fromEntries(ORDER.map((fate) => [fate, all.filter((one) => one.fate === fate).reduce((sum, one) => sum + one.total, 0)]));
  return all
    .map((one) => ({ ...one, share: one.total / sums[one.fate] }))
    .sort((one, other) => ORDER.indexOf(one.fate) - ORDER.indexOf(other.fate) || other.total - one.total || (one.name < other.name ? -1 : 1));
}

/** What becomes of the frame; for a name that is not in the list, what it begins with says so. */
function fateOf(name) {
  if (Object.hasOwn(VERDICTS, name)) return VERDICTS[name][0];
  return ORDER.find((fate) => name.startsWith(fate)) ?? "drop";
}

/** Some frames are consumed without an answer though nothing is wrong with them, such as a proof that verified. */
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
