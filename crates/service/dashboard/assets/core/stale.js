// Freshness: every value that is shown belongs to a source, and is marked as stale as soon as its source is.

import { Emitter } from "./emitter.js";
import { Moment } from "./clock.js";
import { announce } from "./announce.js";
import { h } from "../parts/dom.js";
import { ageText } from "../parts/format.js";

const ticks = new Emitter();

/** One origin of values: the stream of status, a list that is read again and again, one gateway. */
export class Source {
  #behindS = 0;
  #takenAt = null;
  #born = new Moment();
  #hasFailed = false;
  #wasStale = false;

  /**
   * @param {string} name as it is announced, for instance "Live numbers"
   * @param {{silentS: number, behindS: number}} limits stale when nothing came for longer than `silentS`, or when the
   *   values are older than `behindS`
   * @param {{quiet?: boolean, doubted?: (ageS: number) => boolean}} [options] quiet sources are marked but not
   *   announced; `doubted` says whether values of that age are stale for another reason
   */
  constructor(name, limits, { quiet = false, doubted = () => false } = {}) {
    Object.assign(this, { name, limits, quiet, doubted });
  }

  /**
   * Values have just come.
   * @param {number | null} [behindS] how old they were already when they came; null if nobody knows
   */
  taken(behindS = 0) {
    this.#takenAt = new Moment();
    this.#hasFailed = false;
    this.#behindS = behindS === null ? Infinity : Math.max(behindS, 0);
    this.check();
    ticks.emit("tick");
  }

  /** Newer values were asked for, and did not come: those that are shown are what was. */
  failed() {
    this.#hasFailed = true;
    ticks.emit("tick");
  }

  /** Forgets the values, as when somebody else logs in. */
  forget() {
    this.#takenAt = null;
    this.#hasFailed = false;
    this.#born = new Moment();
    this.#wasStale = false;
  }

  /** @returns {boolean} whether any values have come */
  get hasValues() {
    return this.#takenAt !== null;
  }

  /** @returns {number} the age of the values in seconds, which may be Infinity (unknown) */
  ageS() {
    return this.#takenAt === null ? Infinity : this.#behindS + this.#takenAt.elapsedS();
  }

  /** @returns {boolean} */
  isStale() {
    if (this.#takenAt === null) return this.#born.elapsedS() > this.limits.silentS;
    const ageS = this.ageS();
    return this.#hasFailed || this.#takenAt.elapsedS() > this.limits.silentS || ageS > this.limits.behindS || this.doubted(ageS);
  }

  /** @returns {string} the words of the mark */
  words() {
    if (this.#takenAt === null) return "no values yet";
    const age = this.ageS();
    return Number.isFinite(age) ? `stale, as of ${ageText(age)} ago` : "stale, age unknown";
  }

  /** Announces it, once, when the source has become stale or fresh. */
  check() {
    const stale = this.isStale();
    if (stale === this.#wasStale) return;
    this.#wasStale = stale;
    if (!this.quiet) announce(stale ? `${this.name}: ${this.words()}` : `${this.name} are fresh again`);
  }
}

/**
 * A mark for the values inside `element`: empty while they are fresh. `element` gets `data-stale`, which dims it.
 * @param {Element} element
 * @param {Source | Source[]} sources all that the values come from: one that is stale is enough
 * @param {AbortSignal} signal
 * @returns {HTMLElement}
 */
export function staleMark(element, sources, signal) {
  const all = [sources].flat();
  const mark = h("span", { class: "stale-mark", "data-testid": "stale-mark", "data-source": all[0].name, hidden: true });
  const update = () => {
    for (const source of all) source.check();
    const stale = all.find((source) => source.isStale());
    element.toggleAttribute("data-stale", stale !== undefined);
    mark.hidden = stale === undefined;
    mark.textContent = stale?.words() ?? "";
  };
  update();
  ticks.on("tick", update, signal);
  return mark;
}

/**
 * Calls `update` each second and whenever a source has new values.
 * @param {() => void} update
 * @param {AbortSignal} signal
 */
export function onTick(update, signal) {
  ticks.on("tick", update, signal);
}

setInterval(() => ticks.emit("tick"), 1000);
// A page that was hidden or asleep shows its old values for a moment when it comes back: mark them before that.
for (const kind of ["visibilitychange", "pageshow", "focus"]) {
  window.addEventListener(kind, () => ticks.emit("tick"), { capture: true });
}
