// The current view: the part of the address after '#', as path and parameters.

/**
 * @typedef {{path: string[], query: URLSearchParams}} Route
 */

/** @returns {Route} the route of the current address; by default the overview */
export function currentRoute() {
  const hash = location.hash.replace(/^#\/?/, "") || "overview";
  const [path, query = ""] = hash.split("?", 2);
  return { path: path.split("/").map(decode), query: new URLSearchParams(query) };
}

/**
 * The address of a view.
 * @param {string[]} path
 * @param {Record<string, string | null | undefined>} [parameters] empty parameters are omitted
 * @returns {string}
 */
export function routeTo(path, parameters = {}) {
  const nonEmpty = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = nonEmpty.length > 0 ? `?${new URLSearchParams(nonEmpty)}` : "";
  return `#/${path.map(encodeURIComponent).join("/")}${query}`;
}

/**
 * Replaces the current address without showing the view again, while the user types into a filter.
 * @param {string} hash
 */
export function replaceRoute(hash) {
  history.replaceState(null, "", hash);
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
