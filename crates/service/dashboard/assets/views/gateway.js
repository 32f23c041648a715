// One gateway: live values, verdicts, evidence and events.

import { get } from "../core/api.js";
import { Moment } from "../core/clock.js";
import { loadGatewayNames, watchGateway } from "../core/gateways.js";
import { poll } from "../core/poll.js";
import { routeTo } from "../core/router.js";
import { badge } from "../parts/badge.js";
import { h, putIfChanged } from "../parts/dom.js";
import { eventTable } from "../parts/event-table.js";
import { facts } from "../parts/facts.js";
import { count, textOrUnknown, rate, timeNode } from "../parts/format.js";
import { cacheFill, evidenceText, gatewaySource, hasReport, latencyText } from "../parts/gateway-table.js";
import { panel, viewHead } from "../parts/panel.js";
import { longText } from "../parts/text.js";
import { verdictTable } from "../parts/verdict-table.js";

const EVENTS_SHOWN = 50;

/** @param {import("../app.js").Context} context */
export function showGateway({ main, route, signal, setTitle }) {
  const id = route.path[1];
  setTitle(`Gateway ${id}`);
  const head = viewHead(`Gateway ${id}`);
  const [state, numbers, evidence] = [panel("State"), panel("Live values"), panel("Evidence")];
  const verdicts = verdictTable({ withRates: false });
  const verdictPanel = panel("Verdicts since the gateway's start", {}, verdicts.element);
  // Live values and verdicts have the age of the gateway's last report; state and evidence have the age of the response.
  const reportSource = gatewaySource();
  for (const box of [numbers, verdictPanel]) box.markWhenStale(reportSource, signal);
  const show = (gateway) => {
    setTitle(gateway.name || `Gateway ${id}`);
    putIfChanged(head.firstChild, gateway.name, () => longText(gateway.name || `Gateway ${id}`, 160));
    putIfChanged(state.body, { ...gateway, verdicts: null, evidence: null }, () => stateFacts(gateway));
    putIfChanged(numbers.body, gateway, () => (hasReport(gateway) ? numberFacts(gateway) : h("p", { class: "empty" }, "The gateway has sent no report.")));
    putIfChanged(evidence.body, [gateway.trust, gateway.trust_reason, gateway.evidence], () => evidenceParts(gateway));
    verdicts.show(gateway.verdicts);
    reportSource.received(hasReport(gateway) ? gateway.report_age_s : 0);
  };
  const { source: responseSource } = watchGateway({ id, show, fail: state.fail, signal });
  for (const box of [state, evidence]) box.markWhenStale(responseSource, signal);
  main.append(h("p", { class: "crumbs" }, h("a", { href: routeTo(["gateways"]) }, "Gateways")), head,
    h("div", { class: "columns" }, state.element, numbers.element, evidence.element), verdictPanel.element, eventsPanel(id, signal));
}

function evidenceParts(gateway) {
  const { trust_reason: reason, evidence } = gateway;
  const details = evidence && facts([
    ["Received", timeNode(evidence.at_s)],
    ["Boot count of the data plane", count(evidence.boot_count)],
    ["Sequence number", count(evidence.sequence)],
  ]);
  return [h("p", {}, evidenceText(gateway, new Moment())), reason && h("p", { "data-testid": "evidence-reason" }, longText(reason, 400)), details];
}

function stateFacts(gateway) {
  return facts([
    ["State", badge(gateway.state)],
    ["Id", count(gateway.id)],
    ["Last seen", timeNode(gateway.seen_at_s)],
    ["Controller", gateway.controller ?? textOrUnknown("—")],
    ["Fencing token", textOrUnknown(count(gateway.fencing_token))],
    ["Data plane", gateway.data_plane ? `${gateway.data_plane} ${gateway.version ?? ""}` : textOrUnknown("—")],
  ]);
}

function numberFacts(gateway) {
  return facts([
    ["Authentications per second", textOrUnknown(rate(gateway.authentications_per_s))],
    ["Latency p50 / p99", textOrUnknown(latencyText(gateway))],
    ["Cache fill", cacheFill(gateway)],
    ["Sessions", textOrUnknown(count(gateway.sessions))],
  ]);
}

function eventsPanel(id, signal) {
  const events = eventTable({ rowsMax: EVENTS_SHOWN, isIncluded: ({ gateway }) => String(gateway) === id, isLive: true, signal });
  const box = panel("Events at this gateway", {}, events.element);
  const load = async (requestSignal) => {
    await loadGatewayNames(requestSignal);
    return get("/events/history", { gateway: id, limit: EVENTS_SHOWN }, requestSignal);
  };
  const { source } = poll({ name: "Events", everyS: 30, load, show: ({ items }) => events.show(items), fail: box.fail, signal });
  box.markWhenStale(source, signal);
  return box.element;
}
