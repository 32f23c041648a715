// Rounds as they end, by gateway and group, and whether a group's next round is overdue.

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
 * @property {number} overdueAfterS the age of the newest round from which on it says nothing about now
 */

/** @param {any} round @returns {string} */
export const roundKey = (round) => `${round.gateway}/${round.group}/${round.number}`;

/**
 * @param {object} options
 * @param {string | null} [options.gateway] only this gateway's
 * @param {string | null} [options.group] only this group's
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
    const wanted = round && [gateway, null].includes(gateway && String(round.gateway)) && [group, null].includes(group && round.group);
    // Before the list has come there is nothing to add it to, and the list will have it.
    if (!wanted || !polled.source.hasValues) return;
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

/** Two intervals without a round are one too many; a group that is asked by command only is never overdue. */
function overdueAfterS(policy) {
  if (!policy || !(policy.every_s > 0)) return Infinity;
  return 2 * (policy.every_s + (policy.jitter_s ?? 0)) + (policy.answer_ms ?? 0) / 1000 + SLACK_S;
}
