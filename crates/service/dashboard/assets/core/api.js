// The controller's HTTP API: requests, error responses, and keys that make a repeated write harmless.

import { Emitter } from "./emitter.js";
import { controllerNowS, setControllerTime } from "./clock.js";

const BASE = "/api/v1";
const TIMEOUT_MS = 20_000;

/** Emits `unauthenticated` for a response with status 401, and `forbidden` for status 403: the user's role may have changed. */
export const refusals = new Emitter();

/** The failure of a request, with a message for the user. */
export class ApiError extends Error {
  /**
   * @param {string} message
   * @param {{status?: number, code?: string, field?: string, maybeDone?: boolean}} [details] `maybeDone`: the
   *   write may have been carried out, because no response was received, or the response does not contain the result
   */
  constructor(message, { status = 0, code = "", field = "", maybeDone = false } = {}) {
    super(message);
    Object.assign(this, { name: "ApiError", status, code, field, maybeDone });
  }
}

/**
 * Reads a resource. Parameters that are null, undefined or empty are omitted.
 * @param {string} path below /api/v1
 * @param {Record<string, string | number | null | undefined>} [parameters]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export function get(path, parameters = {}, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const queryText = query.size > 0 ? `?${query}` : "";
  return send("GET", path + queryText, { signal });
}

/**
 * Reads a complete list, page by page.
 * @param {string} path
 * @param {AbortSignal} [signal]
 * @returns {Promise<any[]>}
 */
export async function getAll(path, signal) {
  const items = [];
  let after = null;
  // 20 pages of 1000 items are far more than the dashboard can show. The limit ends the loop if every response has a cursor.
  for (let page = 0; page < 20; page += 1) {
    const response = await get(path, { limit: 1000, after }, signal);
    items.push(...response.items);
    after = response.next;
    if (!after) break;
  }
  return items;
}

/**
 * Logs in or out. These two writes need no idempotency key.
 * @param {"/login" | "/logout"} path
 * @param {object} [body]
 * @returns {Promise<any>}
 */
export function postSession(path, body) {
  return send("POST", path, { body, headers: { "X-Linewarden": "1" }, isSession: true });
}

/**
 * One action of the user: a write that may be retried. All attempts with the same body carry the same key, so that the
 * controller carries out the action once, even if the response to the first attempt was lost.
 */
export class Action {
  #path;
  #key = "";
  #bodyOfKey = null;

  /** @param {string} path */
  constructor(path) {
    this.#path = path;
  }

  /**
   * @param {object} body
   * @returns {Promise<any>}
   */
  send(body) {
    const text = JSON.stringify(body);
    // Another body is another action and needs another key: the controller refuses one key with two bodies as a conflict.
    if (text !== this.#bodyOfKey) {
      this.#key = crypto.randomUUID();
      this.#bodyOfKey = text;
    }
    const headers = { "X-Linewarden": "1", "Idempotency-Key": this.#key };
    return send("POST", this.#path, { body, headers });
  }
}

async function send(method, path, { body, headers = {}, signal, isSession = false }) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const request = {
    method,
    headers: { Accept: "application/json", ...headers },
    credentials: "same-origin",
    cache: "no-store",
    redirect: "error",
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  };
  if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers["Content-Type"] = "application/json";
  }
  try {
    const response = await fetch(BASE + path, request);
    if (!response.ok) throw await refusal(response, isSession);
    updateClock(response);
    return response.status === 204 ? null : await response.json();
  } catch (fault) {
    if (fault instanceof ApiError || signal?.aborted) throw fault;
    throw new ApiError(failureText(fault), { maybeDone: method !== "GET" });
  }
}

function failureText(fault) {
  if (fault.name === "TimeoutError") return `The controller did not respond within ${TIMEOUT_MS / 1000} s.`;
  if (fault instanceof SyntaxError) return "The controller's response was incomplete or is not JSON.";
  return "The controller cannot be reached.";
}

async function refusal(response, isSession) {
  const { status } = response;
  const error = (await response.json().catch(() => null))?.error ?? {};
  const retryAfterS = Number(response.headers.get("Retry-After"));
  const advice = retryAfterS > 0 ? ` Try again in ${retryAfterS} s.` : "";
  const message = typeof error.message === "string" && error.message !== "" ? error.message : `The controller responded with status ${status}.`;
  // In the response to a log-in, 401 means an invalid token and not an expired session.
  if (status === 401 && !isSession) refusals.emit("unauthenticated");
  if (status === 403) refusals.emit("forbidden");
  return new ApiError(message + advice, { status, code: error.code, field: error.field, maybeDone: status >= 500 });
}

function updateClock(response) {
  const atMs = Date.parse(response.headers.get("Date") ?? "");
  // The header has whole seconds. The header corrects a wrong clock, but does not replace the more precise time of the stream.
  if (Number.isFinite(atMs) && Math.abs(atMs / 1000 - controllerNowS()) > 2) setControllerTime(atMs / 1000);
}
