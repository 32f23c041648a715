// Names of gateways. Lists of rounds and events contain only the ids of gateways.

import { get, getAll } from "./api.js";
import { Moment } from "./clock.js";
import { poll } from "./poll.js";
import { stream } from "./events.js";

const NAMES_AGE_MAX_S = 60;

let names = new Map();
let loadedAt = null;

/**
 * @param {number | null | undefined} id
 * @returns {string}
 */
export function gatewayName(id) {
  if (id === null || id === undefined) return "";
  return names.get(id) || `gateway ${id}`;
}

/** @returns {[number, string][]} all known gateways, by id */
export const knownGateways = () => [...names].sort(([a], [b]) => a - b);

/**
 * Loads the names if they were not loaded within the last minute. If loading fails, the views show ids.
 * @param {AbortSignal} signal
 */
export async function loadGatewayNames(signal) {
  if (loadedAt !== null && loadedAt.elapsedS() < NAMES_AGE_MAX_S) return;
  await getAll("/gateways", signal).then(storeNames, () => {});
}

/**
 * Reads all gateways periodically.
 * @param {{show: (gateways: any[]) => void, fail: (fault: Error | null) => void, signal: AbortSignal}} options
 * @returns {ReturnType<typeof poll>}
 */
export function watchGateways({ show, fail, signal }) {
  const load = async (requestSignal) => storeNames(await getAll("/gateways", requestSignal));
  return watch({ name: "The list of gateways", load, show, fail, signal }, () => true);
}

/**
 * Reads one gateway periodically.
 * @param {{id: string, show: (gateway: any) => void, fail: (fault: Error | null) => void, signal: AbortSignal}} options
 * @returns {ReturnType<typeof poll>}
 */
export function watchGateway({ id, show, fail, signal }) {
  const load = (requestSignal) => get(`/gateways/${encodeURIComponent(id)}`, {}, requestSignal);
  return watch({ name: "Details of the gateway", load, show, fail, signal }, (event) => String(event.gateway) === id);
}

function watch(options, concerns) {
  // The interval is short enough that a gateway's values do not become stale between two requests.
  const poller = poll({ ...options, everyS: 3 });
  stream.on("event", (event) => {
    if (String(event.kind).startsWith("gateway_") && concerns(event)) poller.refresh();
  }, options.signal);
  return poller;
}

function storeNames(gateways) {
  names = new Map(gateways.map((gateway) => [gateway.id, gateway.name]));
  loadedAt = new Moment();
  return gateways;
}
