// The overview: live rate and latency, the fleet, verdicts, rounds, gateways and the newest events.

import { get } from "../core/api.js";
import { controllerNowS } from "../core/clock.js";
import { loadGatewayNames, watchGateways } from "../core/gateways.js";
import { deviceCountsSource, GAP_S, latestSamples, latestStatus, live, liveSource, verdictRates, WINDOW_S } from "../core/live.js";
import { poll } from "../core/poll.js";
import { routeTo } from "../core/router.js";
import { watchRounds } from "../core/rounds.js";
import { onTick } from "../core/stale.js";
import { chart } from "../parts/chart.js";
import { h } from "../parts/dom.js";
import { eventTable } from "../parts/event-table.js";
import { fleet } from "../parts/fleet.js";
import { count, duration, rate } from "../parts/format.js";
import { gatewayTable } from "../parts/gateway-table.js";
import { heatStrip } from "../parts/heatstrip.js";
import { panel, viewHead } from "../parts/panel.js";
import { tile } from "../parts/tile.js";
import { verdictTable } from "../parts/verdict-table.js";

const EVENTS_SHOWN = 10;

/** @param {import("../app.js").Context} context */
export function showOverview({ main, signal, setTitle }) {
  setTitle("Overview");
  main.append(
    viewHead("Overview"),
    tiles(signal),
    h("div", { class: "columns" }, ...graphs(signal)),
    h("div", { class: "columns small-and-large" }, fleetPanel(signal), verdictsPanel(signal)),
    roundsPanel(signal),
    gatewaysPanel(signal),
    eventsPanel(signal),
  );
}

function tiles(signal) {
  const tileList = [
    tile("Authentications per second", { testid: "rate", value: (status) => rate(status.authentications_per_s) }),
    tile("Data plane latency p50", { testid: "latency-p50", value: (status) => duration(status.latency_us?.p50) }),
    tile("Data plane latency p99", { testid: "latency-p99", value: (status) => duration(status.latency_us?.p99) }),
    tile("Authenticated devices", { testid: "authenticated", value: (status) => count(status.devices?.authenticated), total: (status) => count(status.devices?.total) }),
    tile("Gateways connected", { testid: "gateways-connected", value: (status) => count(status.gateways?.connected), total: (status) => count(status.gateways?.total) }),
  ];
  const box = panel("Now", { class: "tiles-panel" }, h("div", { class: "tiles" }, tileList.map(({ element }) => element)));
  box.markWhenStale([liveSource, deviceCountsSource], signal);
  whenStatus((status) => tileList.forEach(({ show }) => show(status)), signal);
  return box.element;
}

function graphs(signal) {
  const frame = { windowS: WINDOW_S, gapS: GAP_S };
  const rates = chart({ ...frame, title: "Authentications per second", series: [{ key: "rate", label: "Rate" }], format: rate });
  const latencies = chart({ ...frame, title: "Latency in the data plane", series: [{ key: "p50", label: "p50" }, { key: "p99", label: "p99" }], format: duration });
  const draw = () => {
    for (const { draw: drawOne } of [rates, latencies]) drawOne(latestSamples(), controllerNowS());
  };
  live.on("status", draw, signal);
  // The graph also moves without new values: a gap then appears at the end of the graph.
  onTick(draw, signal);
  requestAnimationFrame(draw);
  return [["Authentication rate", rates], ["Latency in the data plane", latencies]].map(([title, { element, button, legend }]) => {
    const box = panel(title, { class: "graph-panel", aside: [legend, button] }, element);
    box.markWhenStale(liveSource, signal);
    return box.element;
  });
}

function fleetPanel(signal) {
  const { element, show } = fleet();
  const box = panel("Fleet", { testid: "fleet" }, element);
  box.markWhenStale([liveSource, deviceCountsSource], signal);
  whenStatus((status) => show(status?.devices ?? null), signal);
  return box.element;
}

function verdictsPanel(signal) {
  const { element, show } = verdictTable();
  const box = panel("Verdicts by reason", { testid: "verdicts" }, h("div", { class: "scroll-box", tabindex: "0", role: "region", "aria-label": "List of verdicts" }, element));
  box.markWhenStale(liveSource, signal);
  whenStatus((status) => show(status?.verdicts ?? null, verdictRates()), signal);
  return box.element;
}

function roundsPanel(signal) {
  const strip = heatStrip();
  const box = panel("Rounds", { aside: viewLink("rounds", "All rounds") }, strip.element);
  box.markWhenStale(watchRounds({ show: strip.show, fail: box.fail, signal }).source, signal);
  return box.element;
}

function gatewaysPanel(signal) {
  const gateways = gatewayTable(signal);
  const box = panel("Gateways", {}, gateways.element);
  box.markWhenStale(watchGateways({ show: gateways.show, fail: box.fail, signal }).source, signal);
  return box.element;
}

function eventsPanel(signal) {
  const events = eventTable({ rowsMax: EVENTS_SHOWN, isIncluded: () => true, isLive: true, signal });
  const box = panel("Newest events", { aside: viewLink("events", "All events") }, events.element);
  const load = async (requestSignal) => {
    await loadGatewayNames(requestSignal);
    return get("/events/history", { limit: EVENTS_SHOWN }, requestSignal);
  };
  const { source } = poll({ name: "Events", everyS: 30, load, show: ({ items }) => events.show(items), fail: box.fail, signal });
  box.markWhenStale(source, signal);
  return box.element;
}

const viewLink = (view, label) => h("a", { href: routeTo([view]) }, label);

function whenStatus(show, signal) {
  show(latestStatus());
  live.on("status", show, signal);
}
