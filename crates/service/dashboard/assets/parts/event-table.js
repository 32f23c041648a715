// Events as a table; new events are added at the top once per second, not one by one.

import { h } from "./dom.js";
import { untrustedText, longText } from "./text.js";
import { table } from "./table.js";
import { timeNode } from "./format.js";
import { deviceLink, gatewayLink } from "./links.js";
import { onTick } from "../core/stale.js";
import { stream } from "../core/events.js";

/** Kinds of events that may need an action. */
const ALARMING = new Set(["revoked", "quarantined", "gateway_disconnected", "gateway_revoked", "gateway_untrusted"]);

/**
 * @param {object} options
 * @param {number} options.rowsMax maximum number of rows
 * @param {(event: any) => boolean} options.isIncluded
 * @param {boolean} options.isLive whether new events are added
 * @param {AbortSignal} options.signal
 * @returns {{element: HTMLElement, show: (events: any[]) => void, pause: (isPaused: boolean) => void}} `show` merges the events
 *   of a response with the events of the stream
 */
export function eventTable({ rowsMax, isIncluded, isLive, signal }) {
  const { element, show: showRows } = table({
    caption: "Events, the newest first",
    columns: COLUMNS,
    keyOf: (event) => event.id,
    empty: "No events.",
    testid: "event-row",
    rowAttributes: (event) => ({ "data-kind": event.kind }),
  });
  let events = [];
  let queuedEvents = [];
  let paused = false;
  const merge = (newEvents) => {
    const byId = new Map([...newEvents, ...events].map((event) => [event.id, event]));
    events = [...byId.values()].sort((a, b) => b.id - a.id).slice(0, rowsMax);
    showRows(events);
  };
  const addQueued = () => {
    if (paused || queuedEvents.length === 0) return;
    merge(queuedEvents);
    queuedEvents = [];
  };
  if (isLive) {
    stream.on("event", (event) => {
      // While the table is paused, at most `rowsMax` events are queued.
      if (isIncluded(event)) queuedEvents = [...queuedEvents, event].slice(-rowsMax);
    }, signal);
    onTick(addQueued, signal);
  }
  const pause = (isPaused) => {
    paused = isPaused;
    addQueued();
  };
  return { element, show: merge, pause };
}

/** Details of the event, and the reason of the action that caused the event. */
export function detailCell({ detail, reason }) {
  return [detail && longText(detail), detail && reason && ": ", reason && longText(reason)].filter(Boolean);
}

const COLUMNS = [
  { title: "Time", renderKey: ({ at_ms: at }) => String(at), cell: ({ at_ms: at }) => timeNode(at / 1000, { short: true }) },
  { title: "Event", cell: ({ kind }) => h("span", { class: ALARMING.has(kind) ? "kind alarming" : "kind" }, String(kind).replaceAll("_", " ")) },
  { title: "Gateway", cell: ({ gateway }) => gatewayLink(gateway) },
  { title: "Device", cell: ({ device }) => deviceLink(device) },
  { title: "Detail", renderKey: ({ detail, reason }) => JSON.stringify([detail, reason]), cell: detailCell },
  { title: "User", cell: ({ actor }) => (actor ? untrustedText(actor) : "") },
];
