// States as text with a symbol and a color; the text alone is sufficient.

import { h } from "./dom.js";

const TONES = {
  active: "ok", authenticated: "ok", ok: "ok", connected: "ok", trusted: "ok",
  quarantined: "warn", late: "warn", overdue: "warn", missed: "warn", disconnected: "warn", never_connected: "neutral", unproven: "neutral",
  revoked: "bad", untrusted: "bad", refused: "bad",
  not_required: "neutral",
};

/**
 * @param {string | null | undefined} state
 * @param {Record<string, any>} [attributes]
 * @returns {HTMLElement}
 */
export function badge(state, attributes = {}) {
  const tone = Object.hasOwn(TONES, state ?? "") ? TONES[state] : "neutral";
  const text = state ? String(state).replaceAll("_", " ") : "unknown";
  return h("span", { ...attributes, class: `badge badge-${tone}` }, text);
}
