// A graph over the last minutes. A period without measurements is shown as a hatched gap, never as a line.

import { freshId, h, put, s, set } from "./dom.js";
import { axisValues, gaps, runs } from "./scale.js";
import { chartTable } from "./chart-table.js";
import { count, UNKNOWN } from "./format.js";

const HEIGHT = 190;
const MARGIN = { left: 58, right: 14, top: 10, bottom: 24 };
const SUMMARY_EVERY_S = 10;

/**
 * @typedef {object} Series
 * @property {string} key the field of a sample
 * @property {string} label
 */

/**
 * @param {object} options
 * @param {string} options.title
 * @param {Series[]} options.series
 * @param {(value: number) => string} options.format
 * @param {number} options.windowS length of the displayed time, seconds
 * @param {number} options.gapS maximum distance of two samples that a line joins, seconds
 * @returns {{element: HTMLElement, button: HTMLElement, legend: HTMLElement | null, draw: (samples: {atS: number}[], nowS: number) => void}}
 *   `button` switches to a table with the same values; `button` and `legend` are shown beside the heading
 */
export function chart({ title, series, format, windowS, gapS }) {
  const layers = makeLayers(series);
  const holder = h("div", { class: "chart" }, layers.svg);
  // The area below a single line is filled; areas of several lines would hide each other.
  const isFilled = series.length === 1;
  const legend = isFilled ? null : makeLegend(series);
  const valueTable = chartTable({ title, series, format, windowS });
  const element = h("div", {}, holder, valueTable.element);
  const button = makeToggle(valueTable, [holder, legend]);
  let lastDrawn = { samples: [], nowS: 0 };
  let summaryAtS = -Infinity;
  let summaryHasValues = false;

  const draw = (samples, nowS) => {
    lastDrawn = { samples, nowS };
    valueTable.show(samples, nowS);
    const frame = frameFor(samples, series, nowS, windowS, holder.clientWidth);
    if (frame.width <= 0) return;
    set(layers.svg, { width: frame.width, height: HEIGHT, viewBox: `0 0 ${frame.width} ${HEIGHT}` });
    drawAxes(layers, frame, format);
    const seriesRuns = series.map(({ key }) => runs(samples, key, gapS));
    drawGaps(layers, frame, gaps(seriesRuns[0], frame.fromS, nowS, gapS));
    layers.lines.forEach((line, index) => set(line, { d: linePath(seriesRuns[index], frame) }));
    if (isFilled) set(layers.area, { d: areaPath(seriesRuns[0], frame) });
    // The label changes at most every 10 s, because a screen reader reads every change.
    if (Math.abs(nowS - summaryAtS) >= SUMMARY_EVERY_S || (samples.length > 0) !== summaryHasValues) {
      summaryAtS = nowS;
      summaryHasValues = samples.length > 0;
      set(layers.svg, { "aria-label": summary(title, series, seriesRuns, frame, format, gapS) });
    }
  };
  new ResizeObserver(() => lastDrawn.nowS > 0 && draw(lastDrawn.samples, lastDrawn.nowS)).observe(holder);
  return { element, button, legend, draw };
}

function makeLayers(series) {
  const hatchId = freshId("hatch");
  const hatch = s("pattern", { id: hatchId, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("line", { class: "hatch", x1: 0, y1: 0, x2: 0, y2: 7 }));
  const [grid, gapLayer] = [s("g", { class: "grid" }), s("g", { fill: `url(#${hatchId})` })];
  const lines = series.map((_, index) => s("path", { class: `line line-${index + 1}`, fill: "none" }));
  const area = s("path", { class: "area" });
  const svg = s("svg", { class: "chart-image", role: "img" }, s("defs", {}, hatch), gapLayer, area, grid, ...lines);
  return { svg, grid, gapLayer, area, lines };
}

function makeLegend(series) {
  const items = series.map(({ label }, index) => h("li", {},
    s("svg", { class: "chart-key", width: 26, height: 10, "aria-hidden": "true" }, s("path", { class: `line line-${index + 1}`, d: "M1 5h24" })), label));
  return h("ul", { class: "legend" }, ...items);
}

function makeToggle(valueTable, images) {
  const button = h("button", { type: "button", class: "link", "aria-expanded": "false", "aria-controls": valueTable.element.id }, "Show as table");
  button.addEventListener("click", () => {
    const open = valueTable.element.hidden;
    valueTable.element.hidden = !open;
    for (const image of images) if (image) image.hidden = open;
    set(button, { "aria-expanded": String(open) });
    button.textContent = open ? "Show as graph" : "Show as table";
  });
  return button;
}

function frameFor(samples, series, nowS, windowS, width) {
  const fromS = nowS - windowS;
  const values = samples.filter((sample) => sample.atS >= fromS).flatMap((sample) => series.map(({ key }) => sample[key] ?? 0));
  const ticks = axisValues(Math.max(0, ...values) * 1.05 || 1);
  const [right, bottom] = [width - MARGIN.right, HEIGHT - MARGIN.bottom];
  const x = (atS) => MARGIN.left + ((atS - fromS) / windowS) * (right - MARGIN.left);
  const y = (value) => bottom - (value / ticks.at(-1)) * (bottom - MARGIN.top);
  return { width, fromS, nowS, windowS, right, bottom, ticks, x, y };
}

function drawAxes({ grid }, frame, format) {
  const rows = frame.ticks.map((value) => [
    s("line", { x1: MARGIN.left, x2: frame.right, y1: frame.y(value), y2: frame.y(value) }),
    s("text", { x: MARGIN.left - 8, y: frame.y(value) + 4, "text-anchor": "end" }, format(value)),
  ]);
  const columns = [];
  const minutes = frame.windowS / 60;
  // A narrow screen has room for only every second label.
  const step = (frame.right - MARGIN.left) / minutes < 58 ? 2 : 1;
  for (let minute = minutes - (minutes % step); minute >= 0; minute -= step) {
    const x = frame.x(frame.nowS - minute * 60);
    const anchor = minute === 0 ? "end" : "middle";
    const label = minute === 0 ? "now" : `−${count(minute)} min`;
    columns.push(s("text", { x, y: HEIGHT - 6, "text-anchor": anchor }, label));
  }
  put(grid, ...rows, ...columns);
}

function drawGaps({ gapLayer }, frame, spans) {
  const rectangles = spans.map(([from, to]) =>
    s("rect", { x: frame.x(from), width: frame.x(to) - frame.x(from), y: MARGIN.top, height: frame.bottom - MARGIN.top }));
  put(gapLayer, ...rectangles);
}

const visibleRuns = (allRuns, frame) => allRuns.map((run) => run.filter(({ atS }) => atS >= frame.fromS)).filter((run) => run.length > 0);
const pointIn = (frame) => ({ atS, value }) => `${frame.x(atS).toFixed(1)} ${frame.y(value).toFixed(1)}`;

function areaPath(allRuns, frame) {
  const x = ({ atS }) => frame.x(atS).toFixed(1);
  const closedPath = (run) => `M${x(run[0])} ${frame.bottom}L${run.map(pointIn(frame)).join("L")}V${frame.bottom}Z`;
  return visibleRuns(allRuns, frame).map(closedPath).join("");
}

function linePath(allRuns, frame) {
  const point = pointIn(frame);
  // A run of one sample is drawn as a dot: a line of length 0 with round ends.
  return visibleRuns(allRuns, frame).map((run) => `M${run.map(point).join("L")}${run.length === 1 ? "h0" : ""}`).join("");
}

function summary(title, series, seriesRuns, frame, format, gapS) {
  const texts = series.map(({ label }, index) => {
    const values = seriesRuns[index].flat().filter(({ atS }) => atS >= frame.fromS).map(({ value }) => value);
    if (values.length === 0) return `${label}: no measurements`;
    return `${label}: last ${format(values.at(-1))}, lowest ${format(Math.min(...values))}, highest ${format(Math.max(...values))}`;
  });
  const missingS = gaps(seriesRuns[0], frame.fromS, frame.nowS, gapS).reduce((sum, [from, to]) => sum + to - from, 0);
  const gapText = missingS > 0 ? ` No values for ${count(missingS)} s of this time.` : "";
  return `Graph: ${title}, last ${count(frame.windowS / 60)} minutes. ${texts.join(". ")}.${gapText}`.replaceAll(UNKNOWN, "unknown");
}
