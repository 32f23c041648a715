// Says things to a screen reader: politely, not more often than every few seconds, and nothing twice in a row.

const INTERVAL_MS = 4000;
const KEPT_MAX = 3;

let region = null;
let waiting = [];
let timer = null;
let lastAt = -Infinity;

/**
 * The live region; it must stand in the page before anything is announced.
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
  // In a storm the newest say most: an old announcement that nobody has heard yet is dropped.
  waiting = [...waiting, text].slice(-KEPT_MAX);
  schedule();
}

function schedule() {
  if (timer !== null || waiting.length === 0) return;
  timer = setTimeout(speak, Math.max(0, lastAt + INTERVAL_MS - performance.now()));
}

function speak() {
  timer = null;
  lastAt = performance.now();
  if (region) region.textContent = waiting.join(". ");
  waiting = [];
}
