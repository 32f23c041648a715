// The logged-in user. The token is sent once and not stored; the session is a cookie that no script can read.

import { Emitter } from "./emitter.js";
import { get, postSession, refusals } from "./api.js";
import { controllerNowS } from "./clock.js";

const RANKS = ["viewer", "operator", "admin"];

/** Longer delays than this overflow a timer, which then fires at once. */
const TIMER_MAX_S = 2_000_000;

let user = null;
let expiry = null;

/** Emits `changed` after a log-in or log-out, or when the role has changed. */
export const sessions = new Emitter();

/** @returns {{name: string, role: string, expires_at_s: number} | null} */
export const currentUser = () => user;

/**
 * Whether the user has at least this role. The role only decides which controls are shown; the controller decides which requests are accepted.
 * @param {"viewer" | "operator" | "admin"} role
 * @returns {boolean}
 */
export const may = (role) => user !== null && RANKS.indexOf(user.role) >= RANKS.indexOf(role);

/** Requests the user of this session from the controller: none if the status is 401. Other errors are thrown. */
export async function resume() {
  try {
    become(await get("/me"));
  } catch (fault) {
    if (fault.status !== 401) throw fault;
    become(null);
  }
}

/** @param {string} token */
export async function logIn(token) {
  become(await postSession("/login", { token }));
}

/** Ends the session at the controller, then in the page. */
export async function logOut() {
  await postSession("/logout");
  become(null);
}

function become(next) {
  const same = user?.name === next?.name && user?.role === next?.role;
  user = next;
  watchExpiry();
  if (!same) sessions.emit("changed", user);
}

/** A page that sends no requests would not detect the end of its session: it sends a request at that time. */
function watchExpiry() {
  clearTimeout(expiry);
  if (user === null || !Number.isFinite(user.expires_at_s)) return;
  const leftS = Math.max(user.expires_at_s - controllerNowS() + 1, 5);
  expiry = setTimeout(() => resume().catch(watchExpiry), Math.min(leftS, TIMER_MAX_S) * 1000);
}

refusals.on("unauthenticated", () => become(null));

let isResuming = false;
refusals.on("forbidden", async () => {
  if (isResuming || user === null) return;
  isResuming = true;
  await resume().catch(() => {});
  isResuming = false;
});
