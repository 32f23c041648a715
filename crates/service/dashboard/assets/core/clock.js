// Time: elapsed time, and the controller's current time.

/** A point in time from which elapsed time is counted. */
export class Moment {
  #monotonicMs = performance.now();
  #wallClockMs = Date.now();

  /**
   * Seconds since this moment. The monotonic clock may stop while the machine sleeps, and the wall clock may be set back.
   * The larger difference is used: an error of a clock can make a value appear too old, but not too fresh.
   * @returns {number}
   */
  elapsedS() {
    return Math.max(performance.now() - this.#monotonicMs, Date.now() - this.#wallClockMs, 0) / 1000;
  }
}

let controllerS = null;
let receivedAt = null;

/**
 * Stores the controller's time, which was received just now.
 * @param {number} nowS
 */
export function setControllerTime(nowS) {
  controllerS = nowS;
  receivedAt = new Moment();
}

/**
 * The controller's time in seconds since 1970; the browser's own clock until the controller's time is known.
 * @returns {number}
 */
export function controllerNowS() {
  return controllerS === null ? Date.now() / 1000 : controllerS + receivedAt.elapsedS();
}
