// Announces texts to a screen reader: politely, at most every 4 seconds, and no text twice in a row.

const INTERVAL_MS = 4000;
const KEPT_MAX = 3;

let region = null;
let waiting = [];
let timer = null;
let lastAt = -Infinity;

/**
 * Sets the live region, which must be in the page before the first announcement.
 * @param {HTMLElement} element
 */
export function announceIn(element) {
  region = element;
}

/**
 * @param {string} text
 */
export function announce(text) {
  if (waiting.includes(text)) return;
  // The newest announcements matter most: older ones that are still queued are dropped.
  waiting = [...waiting, text].slice(-KEPT_MAX);
  schedule();
}

function schedule() {
  if (timer !== null || waiting.length === 0) return;
  timer = setTimeout(announceNow, Math.max(0, lastAt + INTERVAL_MS - performance.now()));
}

function announceNow() {
  timer = null;
  lastAt = performance.now();
  if (region) region.textContent = waiting.join(". ");
  waiting = [];
}
