// The stream of events from the controller, kept open: reconnects by itself, and notices a stream that hangs.

import { Emitter } from "./emitter.js";
import { Moment } from "./clock.js";
import { get } from "./api.js";

/** All kinds of entries of the journal. A test of the service compares them with what it writes. */
export const KINDS = [
  "enrolled", "revoked", "quarantined", "released",
  "gateway_connected", "gateway_lost", "gateway_entered", "gateway_retired", "gateway_trusted", "gateway_distrusted",
  "policy", "round_wanted", "signer", "user",
];

const HANGS_AFTER_S = 15;
const RETRY_MAX_S = 30;

/**
 * Emits `status` (the object of GET /status), `round` (one of GET /rounds, when it has ended), `event` (an entry of the
 * journal), `state` ("connecting", "open" or "waiting") and
 * `resumed` when the stream was away and is back: what happened meanwhile must be read anew.
 */
export const stream = new Emitter();

let source = null;
let watch = null;
let retry = null;
let failures = 0;
let wasOpen = false;
let lastHeard = new Moment();
let state = "closed";

/** @returns {string} */
export const streamState = () => state;

/** Opens the stream and keeps it open until `closeStream`. */
export function openStream() {
  closeStream();
  connect();
  watch = setInterval(reopenIfHung, 1000);
}

/** Closes the stream for good. */
export function closeStream() {
  clearInterval(watch);
  clearTimeout(retry);
  source?.close();
  source = null;
  failures = 0;
  wasOpen = false;
  become("closed");
}

function connect() {
  source?.close();
  become("connecting");
  lastHeard = new Moment();
  const opened = new EventSource("/api/v1/events");
  source = opened;
  opened.addEventListener("open", () => {
    become("open");
    if (wasOpen) stream.emit("resumed");
    wasOpen = true;
  });
  opened.addEventListener("error", () => {
    // While it is CONNECTING the browser tries again by itself, and tells the controller which event came last.
    if (opened.readyState === EventSource.CLOSED) giveUp();
    else become("connecting");
  });
  opened.addEventListener("status", (message) => receive("status", message));
  opened.addEventListener("round", (message) => receive("round", message));
  for (const kind of KINDS) opened.addEventListener(kind, (message) => receive("event", message));
}

function receive(what, message) {
  lastHeard = new Moment();
  failures = 0;
  const data = parse(message.data);
  if (data !== null) stream.emit(what, data);
}

function parse(text) {
  try {
    const data = JSON.parse(text);
    return typeof data === "object" ? data : null;
  } catch {
    return null;
  }
}

function reopenIfHung() {
  if (state !== "waiting" && lastHeard.elapsedS() > HANGS_AFTER_S) giveUp();
}

function giveUp() {
  source?.close();
  source = null;
  failures += 1;
  become("waiting");
  // A stream does not say why it was refused; this request does, and a 401 leads to the log-in.
  get("/me").catch(() => {});
  const waitS = Math.min(2 ** (failures - 1), RETRY_MAX_S) * (0.5 + Math.random() / 2);
  clearTimeout(retry);
  retry = setTimeout(connect, waitS * 1000);
}

function become(next) {
  if (state === next) return;
  state = next;
  stream.emit("state", next);
}
