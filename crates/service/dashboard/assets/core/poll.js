// Polls a resource while a view is open, and shows the values or the error, with their freshness. Values are stale as
// soon as a request fails. While the event stream is stale, no event reports a change: values are then read more often,
// and become stale as early as the values of the stream.

import { Source } from "./stale.js";
import { stream } from "./events.js";
import { liveSource } from "./live.js";
import { Moment } from "./clock.js";

const SHORTEST_S = 1;
const WITHOUT_STREAM_S = 3;

/**
 * @param {object} options
 * @param {string} options.name name of the values, for the stale mark
 * @param {number} options.everyS
 * @param {(signal: AbortSignal) => Promise<any>} options.load
 * @param {(data: any) => void} options.show
 * @param {(fault: Error | null) => void} options.fail called with the error, and with null after the next success
 * @param {AbortSignal} options.signal
 * @returns {{source: Source, again: () => void, reset: () => void}} `again` reads soon, at most once per second;
 *   `reset` reads now, and ignores the response to a request that is still in progress
 */
export function poll({ name, everyS, load, show, fail, signal }) {
  const staleS = everyS * 2 + 10;
  const isInvalid = (ageS) => liveSource.isStale() && ageS > liveSource.limits.staleS;
  const source = new Source(name, { staleS, behindS: staleS }, { isInvalid });
  let timer = null;
  let running = null;
  let isRequested = false;
  let startedAt = null;

  const runIn = (seconds) => {
    clearTimeout(timer);
    if (!signal.aborted) timer = setTimeout(run, seconds * 1000);
  };
  const soonest = () => (startedAt === null ? 0 : Math.max(0, SHORTEST_S - startedAt.elapsedS()));
  const again = () => {
    // The response that is being received may be older than the change that requires reading again.
    if (running) isRequested = true;
    else runIn(soonest());
  };
  const run = async () => {
    const mine = new AbortController();
    running = mine;
    isRequested = false;
    startedAt = new Moment();
    const dropped = () => mine.signal.aborted || signal.aborted;
    try {
      const data = await load(AbortSignal.any([signal, mine.signal]));
      if (dropped()) return;
      source.taken();
      fail(null);
      show(data);
    } catch (fault) {
      if (!dropped()) {
        source.failed();
        fail(fault);
      }
    } finally {
      if (running === mine) {
        running = null;
        runIn(isRequested ? soonest() : liveSource.isStale() ? Math.min(everyS, WITHOUT_STREAM_S) : everyS);
      }
    }
  };
  const reset = () => {
    clearTimeout(timer);
    running?.abort();
    run();
  };
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  stream.on("resumed", again, signal);
  document.addEventListener("visibilitychange", () => document.hidden || again(), { signal });
  run();
  return { source, again, reset };
}
