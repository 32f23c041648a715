// The registry audit log: actor, action, origin and reason of each change. For administrators.

import { get } from "../core/api.js";
import { poll } from "../core/poll.js";
import { routeTo } from "../core/router.js";
import { hasRole } from "../core/session.js";
import { badge } from "../parts/badge.js";
import { h } from "../parts/dom.js";
import { filterForm } from "../parts/filters.js";
import { timeNode } from "../parts/format.js";
import { deviceLink, gatewayLink } from "../parts/links.js";
import { pager } from "../parts/pager.js";
import { panel, viewHead } from "../parts/panel.js";
import { table } from "../parts/table.js";
import { untrustedText, longText } from "../parts/text.js";

const PAGE_ITEMS = 100;

/** @param {import("../app.js").Context} context */
export function showAudit({ main, route, signal, setTitle }) {
  setTitle("Audit log");
  main.append(viewHead("Audit log"));
  if (!hasRole("admin")) {
    main.append(h("p", {}, "The registry audit log is available to administrators only. Log in with an administrator's token."));
    return;
  }
  const filters = { actor: route.query.get("actor"), action: route.query.get("action") };
  const after = route.query.get("after");
  const rows = table({ caption: "Audit log, the newest first", columns: COLUMNS, keyOf: ({ id }) => id, empty: "No records.", testid: "audit-row", roomRem: 60 });
  const pages = pager({ itemsName: "records", after, href: (cursor) => routeTo(["audit"], { ...filters, after: cursor }) });
  const box = panel("Records", { class: "list-panel" }, rows.element, pages.element);
  const load = (requestSignal) => get("/audit", { ...filters, after, limit: PAGE_ITEMS }, requestSignal);
  const show = ({ items, next }) => {
    rows.show(items);
    pages.show(items.length, next);
  };
  box.markWhenStale(poll({ name: "The registry audit log", everyS: 15, load, show, fail: box.fail, signal }).source, signal);
  const fields = [
    { name: "actor", title: "User", value: filters.actor },
    { name: "action", title: "Action, for example revoked", value: filters.action },
  ];
  main.append(filterForm("Audit log", ["audit"], fields), box.element);
}

const COLUMNS = [
  { title: "Time", cell: (entry) => timeNode(entry.at_s) },
  { title: "User", cell: ({ actor, role }) => [untrustedText(actor), h("span", { class: "muted" }, ` ${role}`)] },
  { title: "Origin", cell: ({ origin }) => h("span", { class: "id" }, origin) },
  { title: "Action", cell: ({ action }) => h("code", {}, action) },
  { title: "Target", cell: ({ device, gateway }) => deviceLink(device) || gatewayLink(gateway) },
  { title: "Reason", cell: ({ reason }) => longText(reason) },
  { title: "Outcome", cell: ({ outcome, detail }) => [badge(outcome), detail && " ", detail && longText(detail)] },
];
