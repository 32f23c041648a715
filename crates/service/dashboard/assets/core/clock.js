// Time: how long ago something came, and what time it is at the controller.

/** A moment that elapsed time is counted from. */
export class Moment {
  #steady = performance.now();
  #wall = Date.now();

  /**
   * Seconds since this moment. The steady clock may stand still while the machine sleeps and the wall clock may be set
   * back; the larger of both is taken, so that an error can make a value look too old but never too fresh.
   * @returns {number}
   */
  elapsedS() {
    return Math.max(performance.now() - this.#steady, Date.now() - this.#wall, 0) / 1000;
  }
}

let controllerS = null;
let heardAt = null;

/**
 * Notes the controller's time, just heard.
 * @param {number} nowS
 */
export function heardControllerTime(nowS) {
  controllerS = nowS;
  heardAt = new Moment();
}

/**
 * The controller's time in seconds since 1970; the reader's own clock as long as the controller has not told its time.
 * @returns {number}
 */
export function controllerNowS() {
  return controllerS === null ? Date.now() / 1000 : controllerS + heardAt.elapsedS();
}
