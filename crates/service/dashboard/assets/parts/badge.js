// States as words with a sign and a colour; the word alone is enough to understand it.

import { h } from "./dom.js";

const TONES = {
  active: "ok", authenticated: "ok", ok: "ok", connected: "ok", trusted: "ok",
  quarantined: "warn", late: "warn", overdue: "warn", silent: "warn", never: "quiet", unproven: "quiet",
  revoked: "bad", untrusted: "bad", refused: "bad",
  retired: "quiet", not_required: "quiet",
};

/**
 * @param {string | null | undefined} state
 * @param {Record<string, any>} [attributes]
 * @returns {HTMLElement}
 */
export function badge(state, attributes = {}) {
  const tone = Object.hasOwn(TONES, state ?? "") ? TONES[state] : "quiet";
  const words = state ? String(state).replaceAll("_", " ") : "unknown";
  return h("span", { ...attributes, class: `badge badge-${tone}` }, words);
}
