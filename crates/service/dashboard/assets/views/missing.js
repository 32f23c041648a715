// Views for an unknown address and for a controller that does not respond.

import { routeTo } from "../core/router.js";
import { h } from "../parts/dom.js";
import { errorLine, viewHead } from "../parts/panel.js";

/** @param {import("../app.js").Context} context */
export function showMissing({ main, setTitle }) {
  setTitle("No such page");
  main.append(viewHead("No such page"), h("p", {}, "This address has no view. ", h("a", { href: routeTo(["overview"]) }, "Go to the overview")));
}

/**
 * @param {import("../app.js").Context} context
 * @param {Error} fault
 * @param {() => void} retry
 */
export function showUnreachable({ main, setTitle }, fault, retry) {
  setTitle("No response");
  const error = errorLine();
  const button = h("button", { type: "button", class: "button primary" }, "Try again");
  button.addEventListener("click", retry);
  main.append(viewHead("The controller does not respond"), error.element, button);
  error.fail(fault);
}
