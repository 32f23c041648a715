// The values of a graph as a table: averages over ten seconds, the newest first.

import { freshId, h } from "./dom.js";
import { timeNode } from "./format.js";
import { table } from "./table.js";

const BIN_S = 10;

/**
 * @param {object} options
 * @param {string} options.title
 * @param {import("./chart.js").Series[]} options.series
 * @param {(value: number) => string} options.format
 * @param {number} options.windowS
 * @returns {{element: HTMLElement, show: (samples: {atS: number}[], nowS: number) => void}}
 */
export function chartTable({ title, series, format, windowS }) {
  const rows = table({
    caption: `${title}, averages over ${BIN_S} seconds`,
    keyOf: (bin) => bin.atS,
    empty: "No measurements yet.",
    columns: [
      { title: "From", cell: (bin) => timeNode(bin.atS, { short: true }) },
      ...series.map(({ key, label }) => ({
        title: label,
        kind: "number",
        cell: (bin) => (bin[key] === null ? "no values" : format(bin[key])),
      })),
    ],
  });
  const element = h("div", { id: freshId("chart-table"), class: "chart-table", tabindex: "0", role: "region", "aria-label": `${title} as a table`, hidden: true }, rows.element);
  const show = (samples, nowS) => {
    if (!element.hidden) rows.show(bins(samples, series, nowS, windowS));
  };
  return { element, show };
}

function bins(samples, series, nowS, windowS) {
  const result = [];
  // The incomplete bin is omitted, because its average would keep changing.
  for (let atS = Math.floor(nowS / BIN_S - 1) * BIN_S; atS >= nowS - windowS; atS -= BIN_S) {
    const binSamples = samples.filter((sample) => sample.atS >= atS && sample.atS < atS + BIN_S);
    result.push({ atS, ...Object.fromEntries(series.map(({ key }) => [key, average(binSamples, key)])) });
  }
  return result;
}

function average(samples, key) {
  const values = samples.map((sample) => sample[key]).filter((value) => value !== null);
  return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
}
