// Lets parts of the page tell each other what happened, without knowing each other.

/** Calls listeners by kind; a listener goes when its `signal` is aborted, so that a left view hears nothing more. */
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
      // One listener's fault must not keep the numbers from the others.
      try {
        listener(data);
      } catch (fault) {
        console.error(`a listener to "${kind}" failed`, fault);
      }
    }
  }
}
