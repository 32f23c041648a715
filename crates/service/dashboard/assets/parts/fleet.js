// The state of the fleet: number and share of devices by state.

import { bar } from "./bars.js";
import { h, put } from "./dom.js";
import { count, textOrUnknown, percent } from "./format.js";
import { routeTo } from "../core/router.js";

const STATES = [
  { key: "active", title: "Active", kind: "plain", status: "active" },
  { key: "authenticated", title: "Authenticated", kind: "ok" },
  { key: "missed", title: "Missed the last round", kind: "missed" },
  { key: "quarantined", title: "Quarantined", kind: "warn", status: "quarantined" },
  { key: "revoked", title: "Revoked", kind: "bad", status: "revoked" },
];

/**
 * @returns {{element: HTMLElement, show: (devices: any | null) => void}}
 */
export function fleet() {
  const rows = STATES.map(makeRow);
  const total = h("span", { "data-testid": "fleet-total" });
  const element = h("div", {}, h("p", { class: "fleet-total" }, total, " devices"), h("dl", { class: "fleet" }, rows.map(({ node }) => node)));
  const show = (devices) => {
    put(total, textOrUnknown(count(devices?.total)));
    for (const { update } of rows) update(devices);
  };
  return { element, show };
}

function makeRow({ key, title, kind, status }) {
  const number = h("span", { class: "fleet-number", "data-testid": `fleet-${key}` });
  const share = h("span", { class: "muted fleet-share" });
  const shareBar = bar(kind);
  const name = status ? h("a", { href: routeTo(["devices"], { status }) }, title) : title;
  const node = h("div", {}, h("dt", {}, name), h("dd", {}, shareBar.element, number, share));
  const update = (devices) => {
    const value = devices?.[key];
    const fraction = devices?.total > 0 && Number.isFinite(value) ? value / devices.total : null;
    put(number, textOrUnknown(count(value)));
    share.textContent = fraction === null ? "" : percent(fraction);
    shareBar.show(fraction);
  };
  return { node, update };
}
