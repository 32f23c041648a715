// Events: live and past, by kind, gateway and device.

import { get } from "../core/api.js";
import { KINDS } from "../core/events.js";
import { loadGatewayNames } from "../core/gateways.js";
import { poll } from "../core/poll.js";
import { routeTo } from "../core/router.js";
import { h, set } from "../parts/dom.js";
import { eventTable } from "../parts/event-table.js";
import { filterForm } from "../parts/filters.js";
import { pager } from "../parts/pager.js";
import { panel, viewHead } from "../parts/panel.js";

const PAGE_ITEMS = 100;

/** Selections of kinds; each value is a parameter of the API. */
const CHOICES = [
  ["", "All kinds"],
  ["enrolled,revoked,quarantined,released", "Changes of devices"],
  ["gateway_disconnected,quarantined,revoked", "Alarms"],
  ["gateway_connected,gateway_disconnected,gateway_created,gateway_revoked", "Gateways"],
  ["group_changed,pair_changed,round_requested,signer_changed,user_changed", "Administration"],
  ...KINDS.map((kind) => [kind, `Only: ${kind.replaceAll("_", " ")}`]),
];

/** @param {import("../app.js").Context} context */
export function showEvents({ main, route, signal, setTitle }) {
  setTitle("Events");
  const filters = Object.fromEntries(["kinds", "gateway", "device"].map((name) => [name, route.query.get(name)]));
  const after = route.query.get("after");
  const isLive = !after;
  const events = eventTable({ rowsMax: isLive ? 2 * PAGE_ITEMS : PAGE_ITEMS, isIncluded: (event) => matches(event, filters), isLive, signal });
  const pages = pager({ itemsName: "events", after, href: (cursor) => routeTo(["events"], { ...filters, after: cursor }) });
  const box = panel(isLive ? "Newest" : "Earlier", { class: "list-panel", aside: isLive && pauseButton(events) }, events.element, pages.element);
  const load = async (requestSignal) => {
    await loadGatewayNames(requestSignal);
    return get("/events/history", { ...filters, after, limit: PAGE_ITEMS }, requestSignal);
  };
  const show = ({ items, next }) => {
    events.show(items);
    pages.show(items.length, next);
  };
  box.markWhenStale(poll({ name: "Events", everyS: 30, load, show, fail: box.fail, signal }).source, signal);
  main.append(viewHead("Events"), filterForm("Events", ["events"], fields(filters)), box.element);
}

function fields({ kinds, gateway, device }) {
  const choices = !kinds || CHOICES.some(([value]) => value === kinds) ? CHOICES : [...CHOICES, [kinds, kinds]];
  return [
    { name: "kinds", title: "Kind", value: kinds, options: choices },
    { name: "gateway", title: "Gateway id", value: gateway, attributes: { inputmode: "numeric", pattern: "[0-9]*" } },
    { name: "device", title: "Device id", value: device, attributes: { pattern: "[0-9a-fA-F]{16}", title: "16 hexadecimal digits" } },
  ];
}

function matches(event, { kinds, gateway, device }) {
  if (kinds && !kinds.split(",").includes(event.kind)) return false;
  if (gateway && String(event.gateway) !== gateway) return false;
  return !device || event.device === device.toLowerCase();
}

/** A button that stops the rows from moving while the user reads. */
function pauseButton(events) {
  const button = h("button", { type: "button", class: "button small", "aria-pressed": "false", "data-testid": "pause" }, "Pause");
  button.addEventListener("click", () => {
    const paused = button.getAttribute("aria-pressed") !== "true";
    set(button, { "aria-pressed": String(paused) });
    events.pause(paused);
  });
  return button;
}
