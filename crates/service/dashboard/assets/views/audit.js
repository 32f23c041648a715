// The audit: who changed what, from where and why. For administrators.

import { get } from "../core/api.js";
import { poll } from "../core/poll.js";
import { routeTo } from "../core/router.js";
import { may } from "../core/session.js";
import { badge } from "../parts/badge.js";
import { h } from "../parts/dom.js";
import { filterForm } from "../parts/filters.js";
import { timeNode } from "../parts/format.js";
import { deviceLink, gatewayLink } from "../parts/links.js";
import { pager } from "../parts/pager.js";
import { panel, viewHead } from "../parts/panel.js";
import { table } from "../parts/table.js";
import { foreign, longText } from "../parts/text.js";

const PAGE = 100;

/** @param {import("../app.js").Context} context */
export function showAudit({ main, route, signal, setTitle }) {
  setTitle("Audit");
  main.append(viewHead("Audit"));
  if (!may("admin")) {
    main.append(h("p", {}, "The audit is for administrators. Log in with a token of an administrator to read it."));
    return;
  }
  const filters = { by: route.query.get("by"), what: route.query.get("what") };
  const after = route.query.get("after");
  const rows = table({ caption: "Audit, the newest first", columns: COLUMNS, keyOf: ({ id }) => id, empty: "No entries.", testid: "audit-row", roomRem: 60 });
  const pages = pager({ what: "entries", after, href: (cursor) => routeTo(["audit"], { ...filters, after: cursor }) });
  const box = panel("Entries", { class: "list-panel" }, rows.element, pages.element);
  const load = (inner) => get("/audit", { ...filters, after, limit: PAGE }, inner);
  const show = ({ items, next }) => {
    rows.show(items);
    pages.show(items.length, next);
  };
  box.cover(poll({ name: "The audit", everyS: 15, load, show, fail: box.fail, signal }).source, signal);
  const fields = [
    { name: "by", title: "By", value: filters.by },
    { name: "what", title: "What, such as revoked", value: filters.what },
  ];
  main.append(filterForm("Audit", ["audit"], fields), box.element);
}

const COLUMNS = [
  { title: "Time", cell: (entry) => timeNode(entry.at_s) },
  { title: "By", cell: ({ by, role }) => [foreign(by), h("span", { class: "muted" }, ` ${role}`)] },
  { title: "From", cell: ({ from }) => h("span", { class: "id" }, from) },
  { title: "What", cell: ({ what }) => h("code", {}, what) },
  { title: "Target", cell: ({ device, gateway }) => deviceLink(device) || gatewayLink(gateway) },
  { title: "Reason", cell: ({ reason }) => longText(reason) },
  { title: "Outcome", cell: ({ outcome, detail }) => [badge(outcome), detail && " ", detail && longText(detail)] },
];
