// Links to a device or a gateway, by id.

import { h } from "./dom.js";
import { nameText } from "./text.js";
import { gatewayName } from "../core/gateways.js";
import { routeTo } from "../core/router.js";

/**
 * @param {string | null | undefined} id
 * @returns {Node | string}
 */
export function deviceLink(id) {
  return id ? h("a", { href: routeTo(["devices", id]), class: "id" }, id) : "";
}

/**
 * @param {number | null | undefined} id
 * @returns {Node | string}
 */
export function gatewayLink(id) {
  if (id === null || id === undefined) return "";
  return h("a", { href: routeTo(["gateways", String(id)]) }, nameText(gatewayName(id), String(id)));
}
