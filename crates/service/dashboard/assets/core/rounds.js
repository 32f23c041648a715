// Completed rounds by gateway and group, and detection of overdue rounds.

import { get, getAll } from "./api.js";
import { loadGatewayNames } from "./gateways.js";
import { poll } from "./poll.js";
import { stream } from "./events.js";

const ROUNDS_PER_ROW_MAX = 120;
const OVERDUE_TOLERANCE_S = 15;

/**
 * @typedef {object} StripRow
 * @property {string} key
 * @property {number} gateway
 * @property {string} group
 * @property {any[]} rounds newest first
 * @property {number} overdueAfterS age of the newest round, seconds, from which on the next round is overdue
 */

/** @param {any} round @returns {string} */
export const roundKey = (round) => `${round.gateway}/${round.group}/${round.number}`;

/**
 * @param {object} options
 * @param {string | null} [options.gateway] only rounds of this gateway
 * @param {string | null} [options.group] only rounds of this group
 * @param {(rows: StripRow[]) => void} options.show
 * @param {(fault: Error | null) => void} options.fail
 * @param {AbortSignal} options.signal
 * @returns {ReturnType<typeof poll>}
 */
export function watchRounds({ gateway = null, group = null, show, fail, signal }) {
  const rounds = new Map();
  let groups = new Map();
  const publish = () => show(intoRows(rounds, groups));
  const load = async (requestSignal) => {
    await loadGatewayNames(requestSignal);
    const groupList = await getAll("/groups", requestSignal).catch(() => []);
    groups = new Map(groupList.map((group) => [group.name, group]));
    return (await get("/rounds", { gateway, group, limit: 1000 }, requestSignal)).items;
  };
  const poller = poll({
    name: "Rounds", everyS: 15, load, fail, signal,
    show: (items) => {
      for (const round of items) rounds.set(roundKey(round), round);
      publish();
    },
  });
  stream.on("round", ({ round }) => {
    const isIncluded = round && [gateway, null].includes(gateway && String(round.gateway)) && [group, null].includes(group && round.group);
    // A round that ends before the list is loaded is ignored: the list will contain the round.
    if (!isIncluded || !poller.source.hasValues) return;
    rounds.set(roundKey(round), round);
    publish();
  }, signal);
  return poller;
}

function intoRows(rounds, groups) {
  const rows = new Map();
  const newestFirst = [...rounds.values()].sort((a, b) => b.ended_at_s - a.ended_at_s || b.number - a.number);
  for (const round of newestFirst) {
    const key = `${round.gateway}/${round.group}`;
    const row = rows.get(key) ?? { key, gateway: round.gateway, group: round.group, rounds: [], overdueAfterS: overdueAfterS(groups.get(round.group)) };
    rows.set(key, row);
    if (row.rounds.length < ROUNDS_PER_ROW_MAX) row.rounds.push(round);
    else rounds.delete(roundKey(round));
  }
  return [...rows.values()].sort((a, b) => a.gateway - b.gateway || (a.group < b.group ? -1 : 1));
}

/** The age of the newest round, seconds, at which the next round is overdue: two intervals. Infinity without an interval. */
function overdueAfterS(policy) {
  if (!policy || !(policy.every_s > 0)) return Infinity;
  return 2 * (policy.every_s + (policy.jitter_s ?? 0)) + (policy.proof_timeout_ms ?? 0) / 1000 + OVERDUE_TOLERANCE_S;
}
