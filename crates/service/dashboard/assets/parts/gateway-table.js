// Gateways as a table: state, live values, cache fill, evidence, and the age of the last report of each gateway.

import { h, putIfChanged } from "./dom.js";
import { nameText } from "./text.js";
import { badge } from "./badge.js";
import { bar } from "./bars.js";
import { table } from "./table.js";
import { tickingElement } from "./ticking.js";
import { ageText, count, duration, textOrUnknown, percent, rate } from "./format.js";
import { announce } from "../core/announce.js";
import { Moment } from "../core/clock.js";
import { routeTo } from "../core/router.js";
import { onTick, Source } from "../core/stale.js";

/** Age above which a gateway's report is stale, seconds. */
const STALE_AFTER_S = 10;

/**
 * @param {AbortSignal} signal
 * @returns {{element: HTMLElement, show: (gateways: any[]) => void}}
 */
export function gatewayTable(signal) {
  const sources = new Map();
  let receivedAt = new Moment();
  const { element, show: showRows } = table({
    caption: "Gateways with live values, cache fill and evidence",
    columns: columns(sources, () => receivedAt),
    keyOf: (gateway) => gateway.id,
    roomRem: 62,
    empty: "No gateways exist.",
    testid: "gateway-row",
    rowAttributes: (gateway) => ({ "data-gateway": gateway.id }),
  });
  const show = (gateways) => {
    receivedAt = new Moment();
    for (const gateway of gateways) {
      const source = sources.get(gateway.id) ?? gatewaySource();
      sources.set(gateway.id, source);
      if (hasReport(gateway)) source.received(gateway.report_age_s);
      else source.clear();
    }
    showRows(gateways);
  };
  announceStale(sources, signal);
  return { element, show };
}

/** @returns {Source} the freshness of one gateway's live values */
export const gatewaySource = () => new Source("Gateway", { staleS: STALE_AFTER_S, behindS: STALE_AFTER_S }, { isAnnounced: false });

/** @param {any} gateway @returns {boolean} whether the gateway has sent a report, which can be stale */
export const hasReport = (gateway) => ["authentications_per_s", "latency_us", "devices", "sessions", "verdicts"].some((field) => (gateway[field] ?? null) !== null);

/** @param {any} gateway @returns {string} */
export const latencyText = (gateway) => (gateway.latency_us ? `${duration(gateway.latency_us.p50)} / ${duration(gateway.latency_us.p99)}` : "—");

/**
 * Cache fill: the number of devices of which the gateway holds rows, and this number as a share of the gateway's capacity.
 * @param {any} gateway
 * @returns {any}
 */
export function cacheFill(gateway) {
  if (!Number.isFinite(gateway.devices) || !(gateway.slots > 0)) return textOrUnknown("—");
  const share = gateway.devices / gateway.slots;
  const fill = bar(share >= 0.9 ? "warn" : "plain");
  fill.show(share);
  return h("span", { class: "with-bar" }, fill.element, h("span", {}, `${percent(share)} `, h("span", { class: "muted" }, `${count(gateway.devices)} of ${count(gateway.slots)}`)));
}

/**
 * Trust in the gateway, and result and age of its evidence. If the evidence is older than its validity, the evidence is marked and
 * the gateway is shown as overdue.
 * @param {any} gateway
 * @param {Moment} receivedAt when the gateway was read
 * @returns {any}
 */
export function evidenceText({ trust, evidence }, receivedAt) {
  if (!trust) return textOrUnknown("—");
  if (!evidence) return badge(trust);
  return tickingElement((element) => {
    const ageS = evidence.age_s + receivedAt.elapsedS();
    const isStale = !(ageS <= evidence.validity_s);
    const state = isStale && trust === "trusted" ? "overdue" : trust;
    const text = `${trust === "unproven" ? "previously: " : ""}${evidence.verdict}, ${ageText(ageS)} old`;
    putIfChanged(element, [state, isStale, text], () => [
      badge(state), " ",
      isStale ? h("span", { class: "stale-mark" }, `stale, as of ${ageText(ageS)} ago`) : h("span", { class: "muted" }, text),
    ]);
  });
}

function columns(sources, receivedAt) {
  const { stringify } = JSON;
  return [
    {
      title: "Gateway", renderKey: ({ id, name }) => stringify([id, name]),
      cell: ({ id, name }) => [h("a", { href: routeTo(["gateways", String(id)]) }, nameText(name, `gateway ${id}`)), name && h("span", { class: "muted" }, ` ${id}`)],
    },
    { title: "State", renderKey: ({ state }) => state, cell: ({ state }) => badge(state) },
    {
      title: "Data plane", renderKey: ({ data_plane, version }) => stringify([data_plane, version]),
      cell: ({ data_plane, version }) => (data_plane ? `${data_plane} ${version ?? ""}` : textOrUnknown("—")),
    },
    { title: "Auth./s", kind: "number", renderKey: (gateway) => rate(gateway.authentications_per_s), cell: (gateway) => textOrUnknown(rate(gateway.authentications_per_s)) },
    { title: "Latency p50 / p99", kind: "number", renderKey: latencyText, cell: (gateway) => textOrUnknown(latencyText(gateway)) },
    { title: "Cache fill", renderKey: ({ devices, slots }) => stringify([devices, slots]), cell: cacheFill },
    { title: "Sessions", kind: "number", renderKey: ({ sessions }) => count(sessions), cell: ({ sessions }) => textOrUnknown(count(sessions)) },
    {
      title: "Evidence", renderKey: ({ trust, evidence }) => stringify([trust, evidence]),
      cell: (gateway) => evidenceText(gateway, receivedAt()),
    },
    { title: "Report age", renderKey: ({ id }) => String(id), cell: ({ id }) => tickingElement((element) => showAge(element, sources.get(id))) },
  ];
}

function showAge(element, source) {
  const stale = source.hasValues && source.isStale();
  element.closest("tr")?.toggleAttribute("data-stale", stale);
  element.className = stale ? "stale-mark" : "muted";
  if (stale) element.setAttribute("data-testid", "stale-mark");
  else element.removeAttribute("data-testid");
  if (!source.hasValues) element.textContent = "no report";
  else element.textContent = stale ? source.text() : ageText(source.ageS());
}

/**
 * Announces when more reports have become stale, and when no report is stale any more. The table shows which reports are
 * stale.
 */
function announceStale(sources, signal) {
  let previousCount = 0;
  onTick(() => {
    const staleCount = [...sources.values()].filter((source) => source.hasValues && source.isStale()).length;
    if (staleCount > previousCount) announce(staleCount === 1 ? "The report of 1 gateway is stale" : `The reports of ${staleCount} gateways are stale`);
    if (staleCount === 0 && previousCount > 0) announce("The reports of all gateways are fresh again");
    previousCount = staleCount;
  }, signal);
}
