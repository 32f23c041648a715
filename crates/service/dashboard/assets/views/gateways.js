// All gateways, with live values.

import { watchGateways } from "../core/gateways.js";
import { gatewayTable } from "../parts/gateway-table.js";
import { panel, viewHead } from "../parts/panel.js";

/** @param {import("../app.js").Context} context */
export function showGateways({ main, signal, setTitle }) {
  setTitle("Gateways");
  const gateways = gatewayTable(signal);
  const box = panel("All gateways", { class: "list-panel" }, gateways.element);
  box.markWhenStale(watchGateways({ show: gateways.show, fail: box.fail, signal }).source, signal);
  main.append(viewHead("Gateways"), box.element);
}
