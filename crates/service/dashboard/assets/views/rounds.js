// Rounds: the heat strip of all gateways and groups, and a table of all rounds.

import { get } from "../core/api.js";
import { gatewayName, knownGateways, loadGatewayNames } from "../core/gateways.js";
import { poll } from "../core/poll.js";
import { routeTo } from "../core/router.js";
import { roundKey, watchRounds } from "../core/rounds.js";
import { stream } from "../core/events.js";
import { h } from "../parts/dom.js";
import { filterForm } from "../parts/filters.js";
import { count, duration, percent, timeNode } from "../parts/format.js";
import { heatStrip } from "../parts/heatstrip.js";
import { gatewayLink } from "../parts/links.js";
import { pager } from "../parts/pager.js";
import { panel, viewHead } from "../parts/panel.js";
import { table } from "../parts/table.js";
import { untrustedText } from "../parts/text.js";

const PAGE_ITEMS = 50;

/** @param {import("../app.js").Context} context */
export function showRounds({ main, route, signal, setTitle }) {
  setTitle("Rounds");
  const filters = { gateway: route.query.get("gateway"), group: route.query.get("group") };
  const strip = heatStrip();
  const stripPanel = panel("Heat strip", {}, strip.element);
  stripPanel.markWhenStale(watchRounds({ ...filters, show: strip.show, fail: stripPanel.fail, signal }).source, signal);
  main.append(viewHead("Rounds"), filterForm("Rounds", ["rounds"], fields(filters)), stripPanel.element, listPanel(filters, route.query.get("after"), signal));
}

function fields({ gateway, group }) {
  const gateways = knownGateways().map(([id, name]) => [String(id), name || `gateway ${id}`]);
  // Until the names are known, the user can type an id.
  const control = gateways.length > 0 ? { options: [["", "Any"], ...gateways] } : { type: "text" };
  return [
    { name: "gateway", title: "Gateway", value: gateway, ...control },
    { name: "group", title: "Group", value: group, type: "text" },
  ];
}

function listPanel(filters, after, signal) {
  const rows = table({ caption: "Rounds, the newest first", columns: COLUMNS, keyOf: roundKey, empty: "No rounds.", testid: "round-row" });
  const pages = pager({ itemsName: "rounds", after, href: (cursor) => routeTo(["rounds"], { ...filters, after: cursor }) });
  const box = panel("All rounds", {}, rows.element, pages.element);
  const load = async (requestSignal) => {
    await loadGatewayNames(requestSignal);
    return get("/rounds", { ...filters, after, limit: PAGE_ITEMS }, requestSignal);
  };
  const show = ({ items, next }) => {
    rows.show(items);
    pages.show(items.length, next);
  };
  const poller = poll({ name: "The list of rounds", everyS: 15, load, show, fail: box.fail, signal });
  box.markWhenStale(poller.source, signal);
  if (!after) stream.on("round", () => poller.refresh(), signal);
  return box.element;
}

const shareText = ({ ok, requested }) => (requested > 0 ? percent(ok / requested) : "—");

const COLUMNS = [
  { title: "Round", cell: ({ number, period }) => [count(number), h("span", { class: "muted" }, ` period ${count(period)}`)] },
  { title: "Gateway", renderKey: ({ gateway }) => gatewayName(gateway), cell: ({ gateway }) => gatewayLink(gateway) },
  { title: "Group", cell: ({ group }) => untrustedText(group) },
  { title: "Ended", cell: (round) => timeNode(round.ended_at_s, { short: true }) },
  { title: "Ok", kind: "number", cell: (round) => `${count(round.ok)} of ${count(round.requested)} (${shareText(round)})` },
  { title: "Late", kind: "number", cell: ({ late }) => count(late) },
  { title: "Missed", kind: "number", cell: ({ missed }) => count(missed) },
  { title: "Last proof", kind: "number", cell: (round) => duration(round.last_proof_ms === null ? null : round.last_proof_ms * 1000) },
];
