// The frame of every view: skip link, navigation, state of the event stream, theme and log-out.

import { announceIn } from "./core/announce.js";
import { stream, streamState } from "./core/events.js";
import { live, liveSource } from "./core/live.js";
import { routeTo } from "./core/router.js";
import { logOut, hasRole } from "./core/session.js";
import { onTick } from "./core/stale.js";
import { chooseTheme, chosenTheme, THEMES } from "./core/theme.js";
import { h, put, set } from "./parts/dom.js";
import { errorLine } from "./parts/panel.js";
import { untrustedText, shorten } from "./parts/text.js";

const NAVIGATION = [
  ["overview", "Overview"], ["devices", "Devices"], ["gateways", "Gateways"],
  ["rounds", "Rounds"], ["events", "Events"], ["audit", "Audit log", "admin"],
];

/**
 * Fills the body.
 * @param {HTMLElement} body
 * @returns {{main: HTMLElement, showUser: (user: any | null) => void, showCurrentView: (view: string | null) => void}}
 */
export function buildShell(body) {
  const forever = new AbortController().signal;
  const main = h("main", { id: "main", tabindex: "-1" });
  const links = h("ul", {});
  const navigation = h("nav", { class: "main-nav", "aria-label": "Main", hidden: true }, links);
  const user = h("div", { class: "user", hidden: true });
  const region = h("div", { class: "unseen", role: "status", "aria-live": "polite", "data-testid": "announcements" });
  const brand = h("a", { class: "brand", href: routeTo(["overview"]) }, h("img", { src: "/assets/icon.svg", alt: "", width: 24, height: 24 }), "Linewarden");
  const header = h("header", { class: "top" }, brand, navigation, h("div", { class: "top-end" }, streamMark(forever), themeChoice(), user));
  const error = errorLine();
  body.replaceChildren(skipLink(main), header, databaseNotice(forever), error.element, main, region);
  announceIn(region);

  const showUser = (next) => {
    navigation.hidden = next === null;
    user.hidden = next === null;
    put(links, ...NAVIGATION.filter(([, , role]) => next && (!role || hasRole(role))).map(navigationLink));
    put(user, ...(next ? userParts(next, error.fail) : []));
    error.fail(null);
  };
  const showCurrentView = (view) => {
    for (const link of links.querySelectorAll("a")) set(link, { "aria-current": link.dataset.view === view ? "page" : null });
  };
  return { main, showUser, showCurrentView };
}

function skipLink(main) {
  const link = h("a", { class: "skip", href: "#main" }, "Skip to content");
  // The part after '#' names the view, so the link must not change the address.
  link.addEventListener("click", (event) => {
    event.preventDefault();
    (main.querySelector("h1") ?? main).focus();
  });
  return link;
}

const navigationLink = ([view, title]) => h("li", {}, h("a", { href: routeTo([view]), "data-view": view, "data-testid": `nav-${view}` }, title));

function userParts({ name, role }, fail) {
  const button = h("button", { type: "button", class: "button small", "data-testid": "log-out" }, "Log out");
  button.addEventListener("click", () => logOut().catch((fault) => fail(new Error(`You are still logged in: ${fault.message}`))));
  return [h("span", { class: "user-name", "data-testid": "user" }, untrustedText(shorten(name, 40)), " ", h("span", { class: "muted", "data-testid": "role" }, role)), button];
}

function themeChoice() {
  const select = h("select", { "aria-label": "Theme", "data-testid": "theme" },
    Object.entries(THEMES).map(([theme, title]) => h("option", { value: theme }, title)));
  select.value = chosenTheme();
  select.addEventListener("change", () => chooseTheme(select.value));
  return select;
}

/** Shows whether the displayed values are live. The mark is always visible, because the graphs may be outside of the window. */
function streamMark(signal) {
  const label = h("span", {});
  const mark = h("span", { class: "stream", "data-testid": "stream-state", hidden: true }, h("span", { class: "stream-sign", "aria-hidden": "true" }), label);
  const update = () => {
    const stale = liveSource.isStale();
    const state = stale ? "stale" : liveSource.hasValues ? "live" : "waiting";
    const reconnecting = streamState() === "open" ? "" : "reconnecting; ";
    mark.hidden = streamState() === "closed";
    mark.dataset.state = state;
    label.textContent = { live: "live", waiting: "connecting", stale: reconnecting + liveSource.text() }[state];
  };
  stream.on("state", update, signal);
  onTick(update, signal);
  return mark;
}

function databaseNotice(signal) {
  const notice = h("p", { class: "notice", role: "alert", "data-testid": "database-notice", hidden: true });
  live.on("status", (status) => {
    const isUnavailable = status?.database === "unavailable";
    const text = isUnavailable ? "The registry's database is unavailable: lists cannot be read, and changes are refused. Gateways continue with their caches." : "";
    if (notice.textContent !== text) notice.textContent = text;
    notice.hidden = !isUnavailable;
  }, signal);
  return notice;
}
