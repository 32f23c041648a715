// The logged-in user. The token is sent once and not stored; the session is a cookie that no script can read.

import { Emitter } from "./emitter.js";
import { get, postSession, refusals } from "./api.js";
import { controllerNowS } from "./clock.js";

const RANKS = ["viewer", "operator", "admin"];

/** Maximum delay of a timer, seconds. A longer delay overflows, and the timer fires immediately. */
const TIMER_MAX_S = 2_000_000;

let user = null;
let expiryTimer = null;

/** Emits `changed` after a log-in or log-out, or when the role has changed. */
export const sessions = new Emitter();

/** @returns {{name: string, role: string, expires_at_s: number} | null} */
export const currentUser = () => user;

/**
 * Whether the user has at least this role. The role decides only which controls are shown. The controller decides which
 * requests are accepted.
 * @param {"viewer" | "operator" | "admin"} role
 * @returns {boolean}
 */
export const hasRole = (role) => user !== null && RANKS.indexOf(user.role) >= RANKS.indexOf(role);

/** Requests the user of this session from the controller. Status 401 means no user; other errors are thrown. */
export async function resume() {
  try {
    setUser(await get("/me"));
  } catch (fault) {
    if (fault.status !== 401) throw fault;
    setUser(null);
  }
}

/** @param {string} token */
export async function logIn(token) {
  setUser(await postSession("/login", { token }));
}

/** Ends the session at the controller, then in the page. */
export async function logOut() {
  await postSession("/logout");
  setUser(null);
}

function setUser(next) {
  const isSame = user?.name === next?.name && user?.role === next?.role;
  user = next;
  watchExpiry();
  if (!isSame) sessions.emit("changed", user);
}

/** Sends a request when the session expires; otherwise a page without requests would not detect the expiry. */
function watchExpiry() {
  clearTimeout(expiryTimer);
  if (user === null || !Number.isFinite(user.expires_at_s)) return;
  const remainingS = Math.max(user.expires_at_s - controllerNowS() + 1, 5);
  expiryTimer = setTimeout(() => resume().catch(watchExpiry), Math.min(remainingS, TIMER_MAX_S) * 1000);
}

refusals.on("unauthenticated", () => setUser(null));

let isResuming = false;
refusals.on("forbidden", async () => {
  if (isResuming || user === null) return;
  isResuming = true;
  await resume().catch(() => {});
  isResuming = false;
});
