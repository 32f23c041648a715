// What an operator may do to a device: revoke it, put it into quarantine, release it. A viewer sees no buttons.

import { announce } from "../core/announce.js";
import { may } from "../core/session.js";
import { askReason } from "./dialog.js";
import { h, put } from "./dom.js";
import { longText, shorten, visible } from "./text.js";

const ACTIONS = {
  quarantine: {
    title: "Quarantine", done: "is in quarantine", from: ["active"],
    effect: "No gateway lets it in any more until it is released.",
  },
  release: {
    title: "Release", done: "is released", from: ["quarantined"],
    effect: "Gateways let it authenticate again.",
  },
  revoke: {
    title: "Revoke", done: "is revoked", from: ["active", "quarantined"], danger: true,
    effect: "This is for good: gateways end its sessions and never let it in again, and it can only be enrolled anew under another id.",
  },
};

/**
 * @param {(device: any) => void} changed called with the device as it is after an action
 * @returns {{element: HTMLElement, show: (device: any) => void}}
 */
export function deviceActions(changed) {
  const element = h("div", { class: "actions", role: "group", "aria-label": "Actions", hidden: true });
  let shownFor = null;
  let current = null;
  const show = (device) => {
    current = device;
    const names = may("operator") ? Object.keys(ACTIONS).filter((name) => ACTIONS[name].from.includes(device.status)) : [];
    if (shownFor === names.join()) return;
    shownFor = names.join();
    put(element, names.map((name) => makeButton(name, () => act(name, current, changed))));
    element.hidden = names.length === 0;
  };
  return { element, show };
}

function makeButton(name, run) {
  const { title, danger } = ACTIONS[name];
  const button = h("button", { type: "button", class: danger ? "button danger" : "button", "data-testid": name }, `${title}…`);
  button.addEventListener("click", run);
  return button;
}

async function act(name, device, changed) {
  const { title, done, effect, danger } = ACTIONS[name];
  const answer = await askReason({
    title: `${title} this device?`,
    body: [
      h("p", { class: "dialog-device", "data-testid": "dialog-device" }, device.name ? longText(device.name, 300) : "Device without a name", h("span", { class: "id" }, device.id)),
      h("p", {}, effect),
    ],
    path: `/devices/${encodeURIComponent(device.id)}/${name}`,
    confirm: title,
    danger,
  });
  if (answer === null) return;
  announce(`${visible(shorten(device.name || device.id, 80))} ${done}`);
  // The answer may hold less than the page shows (no history, no leases): the rest comes when the device is read again.
  changed({ ...device, ...answer });
  // The button that opened the dialog may be gone now; the focus must not fall back to the top of the page.
  if (document.activeElement === document.body) document.querySelector("main h1")?.focus();
}
