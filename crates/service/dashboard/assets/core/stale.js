// Freshness: every displayed value belongs to a source, and is marked as stale as soon as its source is stale.

import { Emitter } from "./emitter.js";
import { Moment } from "./clock.js";
import { announce } from "./announce.js";
import { h } from "../parts/dom.js";
import { ageText } from "../parts/format.js";

const ticks = new Emitter();

/** One source of values: the status stream, a list that is polled, one gateway. */
export class Source {
  #behindS = 0;
  #receivedAt = null;
  #createdAt = new Moment();
  #hasFailed = false;
  #wasStale = false;

  /**
   * @param {string} name as announced, for example "Live values"
   * @param {{staleS: number, behindS: number}} limits stale when no values were received for longer than `staleS`,
   *   or when the values are older than `behindS`
   * @param {{isAnnounced?: boolean, isInvalid?: (ageS: number) => boolean}} [options] `isAnnounced`: a screen reader
   *   announces a change; `isInvalid` returns whether values of that age are stale for another reason
   */
  constructor(name, limits, { isAnnounced = true, isInvalid = () => false } = {}) {
    Object.assign(this, { name, limits, isAnnounced, isInvalid });
  }

  /**
   * Records that new values were received.
   * @param {number | null} [behindS] age of the values when they were received; null if unknown
   */
  received(behindS = 0) {
    this.#receivedAt = new Moment();
    this.#hasFailed = false;
    this.#behindS = behindS === null ? Infinity : Math.max(behindS, 0);
    this.check();
    ticks.emit("tick");
  }

  /** Records that a request for newer values failed: the displayed values are then stale. */
  failed() {
    this.#hasFailed = true;
    ticks.emit("tick");
  }

  /** Clears the values, for example when another user logs in. */
  clear() {
    this.#receivedAt = null;
    this.#hasFailed = false;
    this.#createdAt = new Moment();
    this.#wasStale = false;
  }

  /** @returns {boolean} whether any values were received */
  get hasValues() {
    return this.#receivedAt !== null;
  }

  /** @returns {number} the age of the values in seconds, which may be Infinity (unknown) */
  ageS() {
    return this.#receivedAt === null ? Infinity : this.#behindS + this.#receivedAt.elapsedS();
  }

  /** @returns {boolean} */
  isStale() {
    if (this.#receivedAt === null) return this.#createdAt.elapsedS() > this.limits.staleS;
    const ageS = this.ageS();
    return this.#hasFailed || this.#receivedAt.elapsedS() > this.limits.staleS || ageS > this.limits.behindS || this.isInvalid(ageS);
  }

  /** @returns {string} the text of the mark */
  text() {
    if (this.#receivedAt === null) return "no values yet";
    const age = this.ageS();
    return Number.isFinite(age) ? `stale, as of ${ageText(age)} ago` : "stale, age unknown";
  }

  /** Announces once that the source has become stale or fresh. */
  check() {
    const stale = this.isStale();
    if (stale === this.#wasStale) return;
    this.#wasStale = stale;
    if (this.isAnnounced) announce(stale ? `${this.name}: ${this.text()}` : `${this.name} are fresh again`);
  }
}

/**
 * A mark for the values inside `element`: empty while the values are fresh. While the values are stale, `element` has the
 * attribute `data-stale`, which dims the element.
 * @param {Element} element
 * @param {Source | Source[]} sources all sources of the values: the mark is shown if one of the sources is stale
 * @param {AbortSignal} signal
 * @returns {HTMLElement}
 */
export function staleMark(element, sources, signal) {
  const sourceList = [sources].flat();
  const mark = h("span", { class: "stale-mark", "data-testid": "stale-mark", "data-source": sourceList[0].name, hidden: true });
  const update = () => {
    for (const source of sourceList) source.check();
    const stale = sourceList.find((source) => source.isStale());
    element.toggleAttribute("data-stale", stale !== undefined);
    mark.hidden = stale === undefined;
    mark.textContent = stale?.text() ?? "";
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
// After the page was hidden, or the machine was asleep, the values are old: the values are marked before the page is visible.
for (const kind of ["visibilitychange", "pageshow", "focus"]) {
  window.addEventListener(kind, () => ticks.emit("tick"), { capture: true });
}
