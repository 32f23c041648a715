// The event stream from the controller: reconnects automatically, and detects a stream that hangs.

import { Emitter } from "./emitter.js";
import { Moment } from "./clock.js";
import { get } from "./api.js";

/** All kinds of events in the event log. A test compares this list with the kinds that the service records. */
export const KINDS = [
  "enrolled", "revoked", "quarantined", "released",
  "gateway_connected", "gateway_disconnected", "gateway_created", "gateway_revoked", "gateway_trusted", "gateway_untrusted",
  "group_changed", "pair_changed", "round_requested", "signer_changed", "user_changed",
];

const HANGS_AFTER_S = 15;
const RETRY_MAX_S = 30;

/**
 * Emits `status` (the object of GET /status), `round` (an item of GET /rounds, when the round has ended), `event` (an event
 * of the event log), `state` ("connecting", "open", "waiting" or "closed"), and `resumed` after a reconnect: views must then
 * read their lists again.
 */
export const stream = new Emitter();

let source = null;
let watchTimer = null;
let retryTimer = null;
let failures = 0;
let wasOpen = false;
let lastReceived = new Moment();
let state = "closed";

/** @returns {string} */
export const streamState = () => state;

/** Opens the stream and keeps it open until `closeStream`. */
export function openStream() {
  closeStream();
  connect();
  watchTimer = setInterval(reopenIfHung, 1000);
}

/** Closes the stream. */
export function closeStream() {
  clearInterval(watchTimer);
  clearTimeout(retryTimer);
  source?.close();
  source = null;
  failures = 0;
  wasOpen = false;
  setState("closed");
}

function connect() {
  source?.close();
  setState("connecting");
  lastReceived = new Moment();
  const eventSource = new EventSource("/api/v1/events");
  source = eventSource;
  eventSource.addEventListener("open", () => {
    setState("open");
    if (wasOpen) stream.emit("resumed");
    wasOpen = true;
  });
  eventSource.addEventListener("error", () => {
    // In the state CONNECTING the browser reconnects by itself and sends the id of the last event.
    if (eventSource.readyState === EventSource.CLOSED) reconnectLater();
    else setState("connecting");
  });
  eventSource.addEventListener("status", (message) => receive("status", message));
  eventSource.addEventListener("round", (message) => receive("round", message));
  for (const kind of KINDS) eventSource.addEventListener(kind, (message) => receive("event", message));
}

function receive(kind, message) {
  lastReceived = new Moment();
  failures = 0;
  const data = parse(message.data);
  if (data !== null) stream.emit(kind, data);
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
  if (state !== "waiting" && lastReceived.elapsedS() > HANGS_AFTER_S) reconnectLater();
}

function reconnectLater() {
  source?.close();
  source = null;
  failures += 1;
  setState("waiting");
  // An EventSource does not report the cause of a refusal, but the response to this request does: status 401 leads to the log-in.
  get("/me").catch(() => {});
  const waitS = Math.min(2 ** (failures - 1), RETRY_MAX_S) * (0.5 + Math.random() / 2);
  clearTimeout(retryTimer);
  retryTimer = setTimeout(connect, waitS * 1000);
}

function setState(next) {
  if (state === next) return;
  state = next;
  stream.emit("state", next);
}
