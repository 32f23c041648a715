// One gateway: its live numbers, its verdicts, its evidence, and what happened at it.

import { get } from "../core/api.js";
import { Moment } from "../core/clock.js";
import { learnGateways, watchGateway } from "../core/gateways.js";
import { poll } from "../core/poll.js";
import { routeTo } from "../core/router.js";
import { badge } from "../parts/badge.js";
import { h, putChanged } from "../parts/dom.js";
import { eventTable } from "../parts/event-table.js";
import { facts } from "../parts/facts.js";
import { count, known, rate, timeNode } from "../parts/format.js";
import { cacheFill, evidenceText, gatewaySource, hasNumbers, latencyText } from "../parts/gateway-table.js";
import { panel, viewHead } from "../parts/panel.js";
import { longText } from "../parts/text.js";
import { verdictTable } from "../parts/verdict-table.js";

const EVENTS_SHOWN = 50;

/** @param {import("../app.js").Context} context */
export function showGateway({ main, route, signal, setTitle }) {
  const id = route.path[1];
  setTitle(`Gateway ${id}`);
  const head = viewHead(`Gateway ${id}`);
  const [state, numbers, evidence] = [panel("State"), panel("Live numbers"), panel("Evidence")];
  const verdicts = verdictTable({ withRates: false });
  const verdictPanel = panel("Verdicts since its start", {}, verdicts.element);
  // Its numbers have an age of their own, whoever told them; the rest is as fresh as the answer.
  const source = gatewaySource();
  for (const box of [numbers, verdictPanel]) box.cover(source, signal);
  const show = (gateway) => {
    setTitle(gateway.name || `Gateway ${id}`);
    putChanged(head.firstChild, gateway.name, () => longText(gateway.name || `Gateway ${id}`, 160));
    putChanged(state.body, { ...gateway, verdicts: null, evidence: null }, () => stateFacts(gateway));
    putChanged(numbers.body, gateway, () => (hasNumbers(gateway) ? numberFacts(gateway) : h("p", { class: "empty" }, "It has told no numbers.")));
    putChanged(evidence.body, [gateway.trust, gateway.trust_why, gateway.evidence], () => evidenceParts(gateway));
    verdicts.show(gateway.verdicts);
    source.taken(hasNumbers(gateway) ? gateway.numbers_age_s : 0);
  };
  const { source: answered } = watchGateway({ id, show, fail: state.fail, signal });
  for (const box of [state, evidence]) box.cover(answered, signal);
  main.append(h("p", { class: "crumbs" }, h("a", { href: routeTo(["gateways"]) }, "Gateways")), head,
    h("div", { class: "columns" }, state.element, numbers.element, evidence.element), verdictPanel.element, eventsPanel(id, signal));
}

function evidenceParts(gateway) {
  const { trust_why: why, evidence } = gateway;
  const shown = evidence && facts([
    ["Shown", timeNode(evidence.at_s)],
    ["Start of the data plane", count(evidence.boot_count)],
    ["State since then", count(evidence.sequence)],
  ]);
  return [h("p", {}, evidenceText(gateway, new Moment())), why && h("p", { "data-testid": "evidence-why" }, longText(why, 400)), shown];
}

function stateFacts(gateway) {
  return facts([
    ["State", badge(gateway.state)],
    ["Number", count(gateway.id)],
    ["Seen", timeNode(gateway.seen_at_s)],
    ["Controller", gateway.controller ?? known("—")],
    ["Fence", known(count(gateway.fence))],
    ["Data plane", gateway.dataplane ? `${gateway.dataplane} ${gateway.version ?? ""}` : known("—")],
  ]);
}

function numberFacts(gateway) {
  return facts([
    ["Authentications a second", known(rate(gateway.authentications_per_s))],
    ["Latency p50 / p99", known(latencyText(gateway))],
    ["Cache fill", cacheFill(gateway)],
    ["Sessions", known(count(gateway.sessions))],
  ]);
}

function eventsPanel(id, signal) {
  const events = eventTable({ keep: EVENTS_SHOWN, wanted: ({ gateway }) => String(gateway) === id, isLive: true, signal });
  const box = panel("Events at this gateway", {}, events.element);
  const load = async (inner) => {
    await learnGateways(inner);
    return get("/events/history", { gateway: id, limit: EVENTS_SHOWN }, inner);
  };
  const { source } = poll({ name: "Events", everyS: 30, load, show: ({ items }) => events.show(items), fail: box.fail, signal });
  box.cover(source, signal);
  return box.element;
}
