// Starts the dashboard: requests the identity of the user, and shows the view that the address names, or the log-in.

import { closeStream, openStream } from "./core/events.js";
import { clearLive } from "./core/live.js";
import { currentRoute } from "./core/router.js";
import { currentUser, resume, sessions } from "./core/session.js";
import { closeDialogs } from "./parts/dialog.js";
import { escapeInvisible } from "./parts/text.js";
import { buildShell } from "./shell.js";
import { showAudit } from "./views/audit.js";
import { showDevice } from "./views/device.js";
import { showDevices } from "./views/devices.js";
import { showEvents } from "./views/events.js";
import { showGateway } from "./views/gateway.js";
import { showGateways } from "./views/gateways.js";
import { showLogIn } from "./views/login.js";
import { showMissing, showUnreachable } from "./views/missing.js";
import { showOverview } from "./views/overview.js";
import { showRounds } from "./views/rounds.js";

/**
 * @typedef {object} Context the arguments of a view
 * @property {HTMLElement} main the element that the view fills
 * @property {import("./core/router.js").Route} route
 * @property {AbortSignal} signal aborted when the view is left
 * @property {(title: string) => void} setTitle
 */

/** By name: the view of a list, and the view of one item of this list. */
const VIEWS = {
  overview: [showOverview],
  devices: [showDevices, showDevice],
  gateways: [showGateways, showGateway],
  rounds: [showRounds],
  events: [showEvents],
  audit: [showAudit],
};

const shell = buildShell(document.body);
let viewController = new AbortController();

/** Leaves the current view and shows another one. */
function show(view, { focus = true } = {}) {
  viewController.abort();
  viewController = new AbortController();
  closeDialogs();
  shell.main.replaceChildren();
  const setTitle = (title) => {
    document.title = `${escapeInvisible(title)} · Linewarden`;
  };
  const route = currentRoute();
  view({ main: shell.main, route, signal: viewController.signal, setTitle });
  shell.showCurrentView(currentUser() ? route.path[0] : null);
  window.scrollTo(0, 0);
  // A screen reader continues at the heading of the new view. In the log-in, the input field gets the focus.
  if (focus) (shell.main.querySelector("[data-first]") ?? shell.main.querySelector("h1"))?.focus();
}

function viewFor({ path: [name, ...rest] }) {
  const views = Object.hasOwn(VIEWS, name) ? VIEWS[name] : [];
  return views[rest.length] ?? showMissing;
}

function showRoute(options) {
  show(currentUser() ? viewFor(currentRoute()) : showLogIn, options);
}

function changeUser(user) {
  closeStream();
  // The next user must not see data of the previous user.
  clearLive();
  shell.showUser(user);
  if (user) openStream();
  showRoute();
}

async function start() {
  try {
    await resume();
    if (!currentUser()) showRoute();
  } catch (fault) {
    show((context) => showUnreachable(context, fault, start));
  }
}

sessions.on("changed", changeUser);
window.addEventListener("hashchange", () => showRoute());
start();
