// One device: its properties, leases, attestation and history, and the actions of an operator.

import { get } from "../core/api.js";
import { stream } from "../core/events.js";
import { gatewayName, loadGatewayNames } from "../core/gateways.js";
import { poll } from "../core/poll.js";
import { routeTo } from "../core/router.js";
import { badge } from "../parts/badge.js";
import { deviceActions } from "../parts/device-actions.js";
import { h, putIfChanged } from "../parts/dom.js";
import { detailCell } from "../parts/event-table.js";
import { facts } from "../parts/facts.js";
import { count, textOrUnknown, timeNode } from "../parts/format.js";
import { gatewayLink } from "../parts/links.js";
import { panel, viewHead } from "../parts/panel.js";
import { table } from "../parts/table.js";
import { untrustedText, longText, shorten } from "../parts/text.js";

/** @param {import("../app.js").Context} context */
export function showDevice({ main, route, signal, setTitle }) {
  const id = route.path[1].toLowerCase();
  setTitle(id);
  const head = viewHead(h("span", { class: "id" }, id));
  const summary = panel("Device");
  const leases = leaseTable();
  const attestation = panel("Attestation", { testid: "attestation" });
  const leasePanel = panel("Leases", { testid: "leases" }, leases.element);
  const history = historyTable();
  const historyPanel = panel("History", { testid: "history" }, history.element);
  const actions = deviceActions((device) => show(device));
  const show = (device) => {
    setTitle(device.name || id);
    putIfChanged(head.firstChild, [device.name, id], () => [device.name ? longText(device.name, 160) : "Device without a name", h("span", { class: "id", "data-testid": "device-id" }, id)]);
    putIfChanged(summary.body, device, () => [statusLine(device), deviceFacts(device)]);
    putIfChanged(attestation.body, device.attestation, () => attestationParts(device));
    leases.show(device.leases ?? []);
    history.show(device.history ?? []);
    actions.show(device);
    for (const part of parts) part.hidden = false;
  };
  const parts = [attestation.element, leasePanel.element, historyPanel.element];
  for (const part of parts) part.hidden = true;
  main.append(
    h("p", { class: "crumbs" }, h("a", { href: routeTo(["devices"]) }, "Devices")),
    head, actions.element,
    h("div", { class: "columns" }, summary.element, attestation.element, leasePanel.element),
    historyPanel.element);
  watch(id, { show, boxes: [summary, attestation, leasePanel, historyPanel], signal });
}

function watch(id, { show, boxes, signal }) {
  const load = async (requestSignal) => {
    await loadGatewayNames(requestSignal);
    return get(`/devices/${encodeURIComponent(id)}`, {}, requestSignal);
  };
  const poller = poll({ name: "Details of the device", everyS: 10, load, show, fail: boxes[0].fail, signal });
  for (const box of boxes) box.markWhenStale(poller.source, signal);
  stream.on("event", ({ device }) => device === id && poller.refresh(), signal);
}

function statusLine({ status, reason, since_s: sinceS }) {
  return h("p", { class: "status-line" },
    badge(status, { "data-testid": "device-status" }),
    Number.isFinite(sinceS) && [" since ", timeNode(sinceS)],
    reason && [": ", h("span", { "data-testid": "device-reason" }, longText(reason, 300))]);
}

function deviceFacts(device) {
  return facts([
    ["Mode", `${device.mode}, suite ${device.suite}`],
    ["Rows left", device.rows_left === null ? "not used (key mode)" : `${count(device.rows_left)} of ${count(device.rows_total)}`],
    ["PUF profile", device.puf_profile ? untrustedText(shorten(device.puf_profile, 200)) : textOrUnknown("—")],
    ["Enrolled", timeNode(device.enrolled_at_s)],
    ["Epoch", count(device.epoch)],
    ["Revision", count(device.revision)],
  ]);
}

function attestationParts({ id, attestation }) {
  if (!attestation) return h("p", { class: "empty" }, "This device is not attested.");
  return [
    h("p", { class: "status-line" }, badge(attestation.state, { "data-testid": "attestation-state" }), Number.isFinite(attestation.since_s) && [" since ", timeNode(attestation.since_s)]),
    facts([
      ["Group", untrustedText(attestation.group)],
      ["Gateway", gatewayLink(attestation.gateway)],
      ["Protection", attestation.protection === "tpm" ? "TPM" : (attestation.protection ?? textOrUnknown("—"))],
      ["Signed result", h("a", { href: `/api/v1/results/${encodeURIComponent(id)}`, download: `${id}.jwt` }, "EAR as JWT")],
    ]),
  ];
}

function leaseTable() {
  return table({
    caption: "Leases of this device's rows",
    keyOf: ({ gateway, rows }) => `${gateway}/${rows?.[0]}`,
    empty: "No gateway holds rows of this device.",
    columns: [
      { title: "Gateway", renderKey: ({ gateway }) => gatewayName(gateway), cell: ({ gateway }) => gatewayLink(gateway) },
      { title: "Rows", kind: "number", cell: ({ rows }) => (rows ? `${count(rows[0])} – ${count(rows[1])}` : textOrUnknown("—")) },
      { title: "Mark", kind: "number", cell: ({ mark }) => count(mark) },
      { title: "Fencing token", kind: "number", cell: ({ fencing_token: token }) => count(token) },
    ],
  });
}

function historyTable() {
  return table({
    caption: "Events of this device, the newest first",
    keyOf: ({ id }) => id,
    empty: "No events.",
    testid: "history-row",
    columns: [
      { title: "Time", cell: (entry) => timeNode(entry.at_ms / 1000) },
      { title: "Event", cell: ({ kind }) => String(kind).replaceAll("_", " ") },
      { title: "Detail", cell: detailCell },
      { title: "User", cell: ({ actor }) => (actor ? untrustedText(actor) : h("span", { class: "muted" }, "none")) },
      { title: "Gateway", cell: ({ gateway }) => gatewayLink(gateway) },
    ],
  });
}
