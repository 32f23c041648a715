// The live numbers: the newest status, the last five minutes of rate and latency, and verdicts in the last minute.

import { Emitter } from "./emitter.js";
import { stream } from "./events.js";
import { Source } from "./stale.js";
import { heardControllerTime } from "./clock.js";

/** How much the graphs show. */
export const WINDOW_S = 300;
/** Two samples further apart than this are not joined by a line. */
export const GAP_S = 5;

const VERDICT_WINDOW_S = 60;

/**
 * Freshness of what gateways tell, as it comes with the status: a gateway that told nothing for 10 s is not in it any
 * more, and the status comes each second.
 */
export const liveSource = new Source("Live numbers", { silentS: 5, behindS: 12 });

/** Freshness of the counts of devices in it, which are made less often: 10 s at most, and what counting takes. */
export const countsSource = new Source("Counts of devices", { silentS: 5, behindS: 15 }, { quiet: true });

/** Emits `status` when new numbers have come, or when they were forgotten. */
export const live = new Emitter();

let status = null;
let samples = [];
let counts = [];

/** @returns {any | null} the newest object of GET /status */
export const latestStatus = () => status;

/** @returns {{atS: number, rate: number | null, p50: number | null, p99: number | null}[]} oldest first */
export const latestSamples = () => samples;

/**
 * Verdicts a second over the last minute, by name; null where it is not known (yet).
 * @returns {(name: string) => number | null}
 */
export function verdictRates() {
  const [first, last] = [counts[0], counts.at(-1)];
  const seconds = first ? last.atS - first.atS : 0;
  if (seconds < 5) return () => null;
  return (name) => ((last.verdicts[name] ?? 0) - (first.verdicts[name] ?? 0)) / seconds;
}

/** Forgets everything, as when somebody else logs in. */
export function forgetLive() {
  status = null;
  samples = [];
  counts = [];
  liveSource.forget();
  countsSource.forget();
  live.emit("status", null);
}

stream.on("status", (next) => {
  if (!Number.isFinite(next.now_s)) return;
  status = next;
  heardControllerTime(next.now_s);
  if (Number.isFinite(next.as_of_s)) {
    addSample(next);
    addCounts(next);
  }
  liveSource.taken(behindS(next, next.as_of_s));
  // Without counts there is nothing that could be old.
  countsSource.taken(next.devices ? behindS(next, next.devices.as_of_s) : 0);
  live.emit("status", next);
});

const behindS = (status, asOfS) => (Number.isFinite(asOfS) ? status.now_s - asOfS : null);

function addSample(next) {
  // The same numbers told again are no new measurement: they would draw a flat line where nothing is known.
  if (samples.length > 0 && next.as_of_s <= samples.at(-1).atS) return;
  samples.push({
    atS: next.as_of_s,
    rate: known(next.authentications_per_s),
    p50: known(next.latency_us?.p50),
    p99: known(next.latency_us?.p99),
  });
  samples = samples.filter((sample) => sample.atS > next.as_of_s - WINDOW_S - GAP_S);
}

function addCounts(next) {
  const last = counts.at(-1);
  if (!next.verdicts || (last && next.as_of_s <= last.atS)) return;
  const entry = { atS: next.as_of_s, verdicts: next.verdicts };
  // After a gap, or when a counter has gone back (a gateway has restarted or left), differences mean nothing.
  if (last && (entry.atS - last.atS > GAP_S || wentBack(last.verdicts, entry.verdicts))) counts = [];
  counts = [...counts, entry].filter((one) => one.atS >= entry.atS - VERDICT_WINDOW_S);
}

const wentBack = (before, after) => Object.keys(before).some((name) => (after[name] ?? 0) < before[name]);
const known = (value) => (Number.isFinite(value) ? value : null);
