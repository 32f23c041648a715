// Reads something again and again while a view is open, and shows it, or the error, with its freshness. Values are stale
// from the first try on that fails. While the live stream is stale nobody says what has changed: values are read more
// often then, and believed for no longer than the stream's own.

import { Source } from "./stale.js";
import { stream } from "./events.js";
import { liveSource } from "./live.js";
import { Moment } from "./clock.js";

const SHORTEST_S = 1;
const WITHOUT_STREAM_S = 3;

/**
 * @param {object} options
 * @param {string} options.name what it is, for the stale mark
 * @param {number} options.everyS
 * @param {(signal: AbortSignal) => Promise<any>} options.load
 * @param {(data: any) => void} options.show
 * @param {(fault: Error | null) => void} options.fail called with the error, and with null when all is well again
 * @param {AbortSignal} options.signal
 * @returns {{source: Source, again: () => void, reset: () => void}} `again` reads soon, at most once a second; `reset`
 *   reads now, and drops what a request that is still under way would bring
 */
export function poll({ name, everyS, load, show, fail, signal }) {
  const silentS = everyS * 2 + 10;
  const doubted = (ageS) => liveSource.isStale() && ageS > liveSource.limits.silentS;
  const source = new Source(name, { silentS, behindS: silentS }, { doubted });
  let timer = null;
  let running = null;
  let wanted = false;
  let begun = null;

  const runIn = (seconds) => {
    clearTimeout(timer);
    if (!signal.aborted) timer = setTimeout(run, seconds * 1000);
  };
  const soonest = () => (begun === null ? 0 : Math.max(0, SHORTEST_S - begun.elapsedS()));
  const again = () => {
    // What is being read now may have been put together before the change that asks for reading again.
    if (running) wanted = true;
    else runIn(soonest());
  };
  const run = async () => {
    const mine = new AbortController();
    running = mine;
    wanted = false;
    begun = new Moment();
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
        runIn(wanted ? soonest() : liveSource.isStale() ? Math.min(everyS, WITHOUT_STREAM_S) : everyS);
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
