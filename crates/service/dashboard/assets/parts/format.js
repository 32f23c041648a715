// Numbers, ages and times as text, in the user's language and time zone.

import { h } from "./dom.js";
import { controllerNowS } from "../core/clock.js";

const integer = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const threeDigits = new Intl.NumberFormat(undefined, { maximumSignificantDigits: 3 });
const percents = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });
const clockTime = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const dayAndTime = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** The text for an unknown value. */
export const UNKNOWN = "—";

const orUnknown = (value, format) => (Number.isFinite(value) ? format(value) : UNKNOWN);

/** @param {number | null | undefined} value @returns {string} */
export const count = (value) => orUnknown(value, (number) => integer.format(number));

/** @param {number | null | undefined} value @returns {string} a rate: values below 100 have one decimal digit */
export const rate = (value) => orUnknown(value, (number) => (number < 100 ? oneDigit : integer).format(number));

/**
 * A share in percent, rounded down, so that 100 % means all.
 * @param {number | null | undefined} share 0 to 1
 * @returns {string}
 */
export const percent = (share) => orUnknown(share, (number) => percents.format(Math.floor(number * 1000) / 1000));

/** @param {number | null | undefined} us microseconds @returns {string} in µs, ms or s */
export function duration(us) {
  return orUnknown(us, (number) => {
    if (number < 1000) return `${threeDigits.format(number)} µs`;
    if (number < 1_000_000) return `${threeDigits.format(number / 1000)} ms`;
    return `${threeDigits.format(number / 1_000_000)} s`;
  });
}

/**
 * An age in the largest unit that fits into the age, rounded down.
 * @param {number | null | undefined} seconds
 * @returns {string}
 */
export function ageText(seconds) {
  return orUnknown(seconds, (age) => {
    const [unit, size] = UNITS.find(([, unitSize]) => age >= unitSize) ?? UNITS.at(-1);
    return `${integer.format(Math.max(0, Math.floor(age / size)))} ${unit}`;
  });
}

const UNITS = [["d", 86_400], ["h", 3600], ["min", 60], ["s", 1]];

/**
 * Day and time in the user's time zone; the title has the time in UTC.
 * @param {number | null | undefined} atS seconds since 1970
 * @param {{short?: boolean}} [options] short: today's times without the day
 * @returns {HTMLElement}
 */
export function timeNode(atS, { short = false } = {}) {
  const date = new Date(Number.isFinite(atS) ? atS * 1000 : NaN);
  if (Number.isNaN(date.getTime())) return unknownNode();
  const utc = date.toISOString();
  const isToday = date.toDateString() === new Date(controllerNowS() * 1000).toDateString();
  const text = (short && isToday ? clockTime : dayAndTime).format(date);
  return h("time", { datetime: utc, title: `${utc.slice(0, 19).replace("T", " ")} UTC` }, text);
}

/** @returns {HTMLElement} a dash that a screen reader reads as "unknown" */
export function unknownNode() {
  return h("span", {}, h("span", { "aria-hidden": "true" }, UNKNOWN), h("span", { class: "unseen" }, "unknown"));
}

/**
 * A formatted value, or the dash that a screen reader reads as "unknown".
 * @param {string} text
 * @returns {string | HTMLElement}
 */
export const textOrUnknown = (text) => (text === UNKNOWN ? unknownNode() : text);
