// Actions of an operator on a device: quarantine, release, revoke. A viewer sees no buttons.

import { announce } from "../core/announce.js";
import { hasRole } from "../core/session.js";
import { askReason } from "./dialog.js";
import { h, put } from "./dom.js";
import { longText, shorten, escapeInvisible } from "./text.js";

/** By name in the API. `done` ends the announcement of a success; `from` has the states in which the action is possible. */
const ACTIONS = {
  quarantine: {
    title: "Quarantine", done: "is in quarantine", from: ["active"],
    effect: "No gateway accepts the device until an operator releases the device.",
  },
  release: {
    title: "Release", done: "is released", from: ["quarantined"],
    effect: "Gateways accept the device again.",
  },
  revoke: {
    title: "Revoke", done: "is revoked", from: ["active", "quarantined"], danger: true,
    effect: "A revocation is permanent: gateways end the device's sessions and never accept the device again. The device can only be enrolled under another id.",
  },
};

/**
 * @param {(device: any) => void} onChange called with the device after an action
 * @returns {{element: HTMLElement, show: (device: any) => void}}
 */
export function deviceActions(onChange) {
  const element = h("div", { class: "actions", role: "group", "aria-label": "Actions", hidden: true });
  let shownNames = null;
  let current = null;
  const show = (device) => {
    current = device;
    const names = hasRole("operator") ? Object.keys(ACTIONS).filter((name) => ACTIONS[name].from.includes(device.status)) : [];
    if (shownNames === names.join()) return;
    shownNames = names.join();
    put(element, names.map((name) => makeButton(name, () => act(name, current, onChange))));
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

async function act(name, device, onChange) {
  const { title, done, effect, danger } = ACTIONS[name];
  const response = await askReason({
    title: `${title} this device?`,
    body: [
      h("p", { class: "dialog-device", "data-testid": "dialog-device" }, device.name ? longText(device.name, 300) : "Device without a name", h("span", { class: "id" }, device.id)),
      h("p", {}, effect),
    ],
    path: `/devices/${encodeURIComponent(device.id)}/${name}`,
    confirm: title,
    danger,
  });
  if (response === null) return;
  announce(`${escapeInvisible(shorten(device.name || device.id, 80))} ${done}`);
  // The response has no history and leases: the page shows the previous history and leases until the device is read again.
  onChange({ ...device, ...response });
  // The button that opened the dialog may have been removed; the focus must not return to the top of the page.
  if (document.activeElement === document.body) document.querySelector("main h1")?.focus();
}
