// Polls a resource while a view is open, and shows the values or the error, with their freshness. Values are stale as
// soon as a request fails. While the event stream is stale, no event reports a change. Values are then read every 3 s,
// and become stale after the same time as the values of the stream.

import { Source } from "./stale.js";
import { stream } from "./events.js";
import { liveSource } from "./live.js";
import { Moment } from "./clock.js";

const INTERVAL_MIN_S = 1;
const INTERVAL_WITHOUT_STREAM_S = 3;

/**
 * @param {object} options
 * @param {string} options.name name of the values, for the stale mark
 * @param {number} options.everyS interval between requests
 * @param {(signal: AbortSignal) => Promise<any>} options.load
 * @param {(data: any) => void} options.show
 * @param {(fault: Error | null) => void} options.fail called with the error, and with null after the next success
 * @param {AbortSignal} options.signal
 * @returns {{source: Source, refresh: () => void, reset: () => void}} `refresh` requests new values, at most once per
 *   second; `reset` requests new values immediately, and ignores the response to a request in progress
 */
export function poll({ name, everyS, load, show, fail, signal }) {
  const staleS = everyS * 2 + 10;
  const isInvalid = (ageS) => liveSource.isStale() && ageS > liveSource.limits.staleS;
  const source = new Source(name, { staleS, behindS: staleS }, { isInvalid });
  let timer = null;
  let currentRequest = null;
  let isRefreshRequested = false;
  let startedAt = null;

  const runIn = (seconds) => {
    clearTimeout(timer);
    if (!signal.aborted) timer = setTimeout(run, seconds * 1000);
  };
  const delayS = () => (startedAt === null ? 0 : Math.max(0, INTERVAL_MIN_S - startedAt.elapsedS()));
  const refresh = () => {
    // The response to the current request may be older than the change that requires the refresh.
    if (currentRequest) isRefreshRequested = true;
    else runIn(delayS());
  };
  const run = async () => {
    const request = new AbortController();
    currentRequest = request;
    isRefreshRequested = false;
    startedAt = new Moment();
    const isAborted = () => request.signal.aborted || signal.aborted;
    try {
      const data = await load(AbortSignal.any([signal, request.signal]));
      if (isAborted()) return;
      source.received();
      fail(null);
      show(data);
    } catch (fault) {
      if (!isAborted()) {
        source.failed();
        fail(fault);
      }
    } finally {
      if (currentRequest === request) {
        currentRequest = null;
        runIn(isRefreshRequested ? delayS() : liveSource.isStale() ? Math.min(everyS, INTERVAL_WITHOUT_STREAM_S) : everyS);
      }
    }
  };
  const reset = () => {
    clearTimeout(timer);
    currentRequest?.abort();
    run();
  };
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  stream.on("resumed", refresh, signal);
  document.addEventListener("visibilitychange", () => document.hidden || refresh(), { signal });
  run();
  return { source, refresh, reset };
}
