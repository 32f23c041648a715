// Events between parts of the page that do not import each other.

/** Calls listeners by kind. A listener is removed when its `signal` is aborted, so that a closed view receives no events. */
export class Emitter {
  #listeners = new Map();

  /**
   * @param {string} kind
   * @param {(data: any) => void} listener
   * @param {AbortSignal} [signal]
   */
  on(kind, listener, signal) {
    if (signal?.aborted) return;
    const listeners = this.#listeners.get(kind) ?? new Set();
    this.#listeners.set(kind, listeners.add(listener));
    signal?.addEventListener("abort", () => listeners.delete(listener), { once: true });
  }

  /**
   * @param {string} kind
   * @param {any} [data]
   */
  emit(kind, data) {
    for (const listener of [...(this.#listeners.get(kind) ?? [])]) {
      // If a listener fails, the other listeners must receive the event nevertheless.
      try {
        listener(data);
      } catch (fault) {
        console.error(`a listener to "${kind}" failed`, fault);
      }
    }
  }
}
