// Live values: the newest status, rate and latency of the last five minutes, and verdicts of the last minute.

import { Emitter } from "./emitter.js";
import { stream } from "./events.js";
import { Source } from "./stale.js";
import { setControllerTime } from "./clock.js";

/** The time span of the graphs, seconds. */
export const WINDOW_S = 300;
/** Maximum distance of two samples that a line of a graph joins, seconds. */
export const GAP_S = 5;

const VERDICT_WINDOW_S = 60;

/**
 * Freshness of the gateways' reports, which are part of the status. The status arrives each second and contains only
 * gateways that reported within the last 10 s.
 */
export const liveSource = new Source("Live values", { staleS: 5, behindS: 12 });

/** Freshness of the device counts in the status. The counts are at most 10 s old, plus the time that counting takes. */
export const deviceCountsSource = new Source("Counts of devices", { staleS: 5, behindS: 15 }, { isAnnounced: false });

/** Emits `status` when new values were received, or were cleared. */
export const live = new Emitter();

let status = null;
let samples = [];
let verdictCounts = [];

/** @returns {any | null} the newest object of GET /status */
export const latestStatus = () => status;

/** @returns {{atS: number, rate: number | null, p50: number | null, p99: number | null}[]} oldest first */
export const latestSamples = () => samples;

/**
 * Verdicts per second over the last minute, by name; null if unknown.
 * @returns {(name: string) => number | null}
 */
export function verdictRates() {
  const [first, last] = [verdictCounts[0], verdictCounts.at(-1)];
  const seconds = first ? last.atS - first.atS : 0;
  if (seconds < 5) return () => null;
  return (name) => ((last.verdicts[name] ?? 0) - (first.verdicts[name] ?? 0)) / seconds;
}

/** Clears all values, for example when another user logs in. */
export function clearLive() {
  status = null;
  samples = [];
  verdictCounts = [];
  liveSource.clear();
  deviceCountsSource.clear();
  live.emit("status", null);
}

stream.on("status", (next) => {
  if (!Number.isFinite(next.now_s)) return;
  status = next;
  setControllerTime(next.now_s);
  if (Number.isFinite(next.as_of_s)) {
    addSample(next);
    addVerdictCounts(next);
  }
  liveSource.received(behindS(next, next.as_of_s));
  // Without device counts in the status, no counts are displayed, so no counts can be stale.
  deviceCountsSource.received(next.devices ? behindS(next, next.devices.as_of_s) : 0);
  live.emit("status", next);
});

const behindS = (status, asOfS) => (Number.isFinite(asOfS) ? status.now_s - asOfS : null);

function addSample(next) {
  // A repeated report is not a new measurement; it would add a flat line to the graph.
  if (samples.length > 0 && next.as_of_s <= samples.at(-1).atS) return;
  samples.push({
    atS: next.as_of_s,
    rate: finiteOrNull(next.authentications_per_s),
    p50: finiteOrNull(next.latency_us?.p50),
    p99: finiteOrNull(next.latency_us?.p99),
  });
  samples = samples.filter((sample) => sample.atS > next.as_of_s - WINDOW_S - GAP_S);
}

function addVerdictCounts(next) {
  const last = verdictCounts.at(-1);
  if (!next.verdicts || (last && next.as_of_s <= last.atS)) return;
  const entry = { atS: next.as_of_s, verdicts: next.verdicts };
  // The sums decrease when a gateway restarts or disconnects. A difference across a decrease or a gap is meaningless.
  if (last && (entry.atS - last.atS > GAP_S || hasDecreased(last.verdicts, entry.verdicts))) verdictCounts = [];
  verdictCounts = [...verdictCounts, entry].filter((other) => other.atS >= entry.atS - VERDICT_WINDOW_S);
}

const hasDecreased = (before, after) => Object.keys(before).some((name) => (after[name] ?? 0) < before[name]);
const finiteOrNull = (value) => (Number.isFinite(value) ? value : null);
