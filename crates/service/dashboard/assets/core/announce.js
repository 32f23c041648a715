// Announces texts to a screen reader, at most every 4 seconds, without interrupting the screen reader. Queued texts are
// announced together, each text once.

const INTERVAL_MS = 4000;
const QUEUED_MAX = 3;

let region = null;
let queue = [];
let timer = null;
let lastAnnouncementMs = -Infinity;

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
  if (queue.includes(text)) return;
  // The newest announcements matter most: the oldest queued announcements are dropped.
  queue = [...queue, text].slice(-QUEUED_MAX);
  schedule();
}

function schedule() {
  if (timer !== null || queue.length === 0) return;
  timer = setTimeout(announceNow, Math.max(0, lastAnnouncementMs + INTERVAL_MS - performance.now()));
}

function announceNow() {
  timer = null;
  lastAnnouncementMs = performance.now();
  if (region) region.textContent = queue.join(". ");
  queue = [];
}
