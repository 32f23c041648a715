// Completed rounds by gateway and group, and detection of overdue rounds.

import { get, getAll } from "./api.js";
import { learnGateways } from "./gateways.js";
import { poll } from "./poll.js";
import { stream } from "./events.js";

const KEPT_PER_ROW = 120;
const SLACK_S = 15;

/**
 * @typedef {object} StripRow
 * @property {string} key
 * @property {number} gateway
 * @property {string} group
 * @property {any[]} rounds newest first
 * @property {number} overdueAfterS age of the newest round from which on the round is stale
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
  let policies = new Map();
  const publish = () => show(intoRows(rounds, policies));
  const load = async (inner) => {
    await learnGateways(inner);
    const listed = await getAll("/policies", inner).catch(() => []);
    policies = new Map(listed.map((policy) => [policy.name, policy]));
    return (await get("/rounds", { gateway, group, limit: 1000 }, inner)).items;
  };
  const polled = poll({
    name: "Rounds", everyS: 15, load, fail, signal,
    show: (items) => {
      for (const round of items) rounds.set(roundKey(round), round);
      publish();
    },
  });
  stream.on("round", ({ round }) => {
    const isIncluded = round && [gateway, null].includes(gateway && String(round.gateway)) && [group, null].includes(group && round.group);
    // Until the list is loaded there is no list to add the round to; the list will contain the round.
    if (!isIncluded || !polled.source.hasValues) return;
    rounds.set(roundKey(round), round);
    publish();
  }, signal);
  return polled;
}

function intoRows(rounds, policies) {
  const rows = new Map();
  const newestFirst = [...rounds.values()].sort((one, other) => other.ended_at_s - one.ended_at_s || other.number - one.number);
  for (const round of newestFirst) {
    const key = `${round.gateway}/${round.group}`;
    const row = rows.get(key) ?? { key, gateway: round.gateway, group: round.group, rounds: [], overdueAfterS: overdueAfterS(policies.get(round.group)) };
    rows.set(key, row);
    if (row.rounds.length < KEPT_PER_ROW) row.rounds.push(round);
    else rounds.delete(roundKey(round));
  }
  return [...rows.values()].sort((one, other) => one.gateway - other.gateway || (one.group < other.group ? -1 : 1));
}

/** A round is overdue after two intervals. A group without an interval, with manual rounds only, is never overdue. */
function overdueAfterS(policy) {
  if (!policy || !(policy.every_s > 0)) return Infinity;
  return 2 * (policy.every_s + (policy.jitter_s ?? 0)) + (policy.proof_timeout_ms ?? 0) / 1000 + SLACK_S;
}
