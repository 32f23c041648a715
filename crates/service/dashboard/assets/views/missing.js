// What is shown where there is nothing to show: an address without a view, and a controller that does not answer.

import { routeTo } from "../core/router.js";
import { h } from "../parts/dom.js";
import { errorLine, viewHead } from "../parts/panel.js";

/** @param {import("../app.js").Context} context */
export function showMissing({ main, setTitle }) {
  setTitle("No such page");
  main.append(viewHead("No such page"), h("p", {}, "There is no view at this address. ", h("a", { href: routeTo(["overview"]) }, "To the overview")));
}

/**
 * @param {import("../app.js").Context} context
 * @param {Error} fault
 * @param {() => void} again
 */
export function showUnreachable({ main, setTitle }, fault, again) {
  setTitle("No answer");
  const error = errorLine();
  const button = h("button", { type: "button", class: "button primary" }, "Try again");
  button.addEventListener("click", again);
  main.append(viewHead("The controller does not answer"), error.element, button);
  error.fail(fault);
}
