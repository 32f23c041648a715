// Devices: search by prefix of name or id, filter by status, page by page.

import { get } from "../core/api.js";
import { poll } from "../core/poll.js";
import { replaceRoute, routeTo } from "../core/router.js";
import { stream } from "../core/events.js";
import { badge } from "../parts/badge.js";
import { h } from "../parts/dom.js";
import { count, timeNode } from "../parts/format.js";
import { pager } from "../parts/pager.js";
import { panel, viewHead } from "../parts/panel.js";
import { table } from "../parts/table.js";
import { longText, nameText } from "../parts/text.js";

const PAGE_ITEMS = 100;
const TYPING_MS = 250;
const LIST_CHANGING_KINDS = new Set(["enrolled", "replaced", "revoked", "quarantined", "released"]);

/** @param {import("../app.js").Context} context */
export function showDevices({ main, route, signal, setTitle }) {
  setTitle("Devices");
  const filters = { q: route.query.get("q") ?? "", status: route.query.get("status") ?? "", mode: route.query.get("mode") ?? "" };
  let after = route.query.get("after");
  const rows = table({ caption: "Devices", columns: COLUMNS, keyOf: ({ id }) => id, empty: "No device matches.", testid: "device-row", roomRem: 60, rowAttributes: ({ id }) => ({ "data-device": id }) });
  const box = panel("Results", { class: "list-panel" }, rows.element);
  let pages = makePager(filters, after);
  box.body.append(pages.element);

  const poller = poll({
    name: "The list of devices", everyS: 15, signal, fail: box.fail,
    load: (requestSignal) => findDevices(filters, after, requestSignal),
    show: ({ items, next }) => {
      rows.show(items);
      pages.show(items.length, next);
    },
  });
  box.markWhenStale(poller.source, signal);
  stream.on("event", ({ kind }) => LIST_CHANGING_KINDS.has(kind) && poller.refresh(), signal);

  const change = () => {
    after = null;
    const newPages = makePager(filters, after);
    pages.element.replaceWith(newPages.element);
    pages = newPages;
    replaceRoute(routeTo(["devices"], filters));
    poller.reset();
  };
  main.append(viewHead("Devices"), filterForm(filters, change, signal), box.element);
}

/**
 * Reads a page of devices whose names start with the search text. If the text can also be the start of ids, the first page
 * begins with the devices with these ids, at most PAGE_ITEMS.
 */
async function findDevices({ q, status, mode }, after, signal) {
  const byName = get("/devices", { name_prefix: q, status, mode, after, limit: PAGE_ITEMS }, signal);
  const digits = q.trim();
  if (after || !/^[0-9a-f]{1,16}$/i.test(digits)) return byName;
  const byId = get("/devices", { id_prefix: digits, status, mode, limit: PAGE_ITEMS }, signal);
  const [names, ids] = await Promise.all([byName, byId]);
  const idsFound = new Set(ids.items.map(({ id }) => id));
  return { ...names, items: [...ids.items, ...names.items.filter(({ id }) => !idsFound.has(id))] };
}

const makePager = (filters, after) => pager({ itemsName: "devices", after, href: (cursor) => routeTo(["devices"], { ...filters, after: cursor }) });

function filterForm(filters, change, signal) {
  const search = h("input", { id: "device-search", type: "search", value: filters.q, autocomplete: "off", autocapitalize: "none", spellcheck: "false", maxlength: "255", "data-testid": "device-search" });
  let timer = null;
  const applySearch = () => {
    clearTimeout(timer);
    if (filters.q === search.value) return;
    filters.q = search.value;
    change();
  };
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(applySearch, TYPING_MS);
  });
  signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
  const form = h("form", { class: "filters", role: "search", "aria-label": "Devices" },
    h("div", { class: "field wide" }, h("label", { for: "device-search" }, "Name or id starts with"), search),
    choice("Status", "status", { "": "Any", active: "Active", quarantined: "Quarantined", revoked: "Revoked" }, filters, change),
    choice("Mode", "mode", { "": "Any", pool: "Pool", key: "Key" }, filters, change));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    applySearch();
  });
  return form;
}

function choice(title, key, options, filters, change) {
  const id = `device-${key}`;
  const select = h("select", { id, "data-testid": `device-${key}-filter` }, Object.entries(options).map(([value, label]) => h("option", { value }, label)));
  select.value = filters[key];
  select.addEventListener("change", () => {
    filters[key] = select.value;
    change();
  });
  return h("div", { class: "field" }, h("label", { for: id }, title), select);
}

const rowsText = ({ rows_left: left, rows_total: total }) => (left === null ? "–" : `${count(left)} of ${count(total)}`);

const COLUMNS = [
  {
    title: "Device", renderKey: ({ id, name }) => JSON.stringify([id, name]),
    cell: ({ id, name }) => h("a", { href: routeTo(["devices", id]), "data-testid": "device-link" }, nameText(name, "no name"), h("span", { class: "id" }, id)),
  },
  { title: "Status", renderKey: ({ status }) => status, cell: ({ status }) => badge(status) },
  { title: "Reason", renderKey: ({ reason }) => String(reason), cell: ({ reason }) => (reason ? longText(reason, 80) : "") },
  { title: "Mode", renderKey: ({ mode, suite }) => `${mode} ${suite}`, cell: ({ mode, suite }) => `${mode}, suite ${suite}` },
  { title: "Rows left", kind: "number", renderKey: rowsText, cell: rowsText },
  { title: "Enrolled", renderKey: (device) => String(device.enrolled_at_s), cell: (device) => timeNode(device.enrolled_at_s) },
];
