// Who is logged in. The token is sent once and forgotten; what remains is a cookie that no script can read.

import { Emitter } from "./emitter.js";
import { get, postSession, refusals } from "./api.js";
import { controllerNowS } from "./clock.js";

const RANKS = ["viewer", "operator", "admin"];

/** Longer delays than this overflow a timer, which then fires at once. */
const TIMER_MAX_S = 2_000_000;

let user = null;
let expiry = null;

/** Emits `changed` when somebody logged in or out, or the role is another one. */
export const sessions = new Emitter();

/** @returns {{name: string, role: string, expires_s: number} | null} */
export const currentUser = () => user;

/**
 * Whether the user has at least this role. It only decides what is shown; the controller decides what is done.
 * @param {"viewer" | "operator" | "admin"} role
 * @returns {boolean}
 */
export const may = (role) => user !== null && RANKS.indexOf(user.role) >= RANKS.indexOf(role);

/** Asks the controller who this browser is; nobody if it says 401. Other errors are thrown. */
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

/** Ends the session at the controller, then here. */
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

/** A page that asks for nothing would not notice that its session is over: it asks when that is due. */
function watchExpiry() {
  clearTimeout(expiry);
  if (user === null || !Number.isFinite(user.expires_s)) return;
  const leftS = Math.max(user.expires_s - controllerNowS() + 1, 5);
  expiry = setTimeout(() => resume().catch(watchExpiry), Math.min(leftS, TIMER_MAX_S) * 1000);
}

refusals.on("unauthenticated", () => become(null));

let asking = false;
refusals.on("forbidden", async () => {
  if (asking || user === null) return;
  asking = true;
  await resume().catch(() => {});
  asking = false;
});
