// The log-in: sends the token to the controller and does not store it.

import { currentRoute } from "../core/router.js";
import { logIn } from "../core/session.js";
import { h } from "../parts/dom.js";
import { errorLine, viewHead } from "../parts/panel.js";

/** @param {import("../app.js").Context} context */
export function showLogIn({ main, setTitle }) {
  setTitle("Log in");
  const error = errorLine();
  error.element.id = "log-in-error";
  const field = h("input", {
    id: "token", name: "token", type: "password", required: true, autocomplete: "current-password", autocapitalize: "none",
    spellcheck: "false", "aria-describedby": "log-in-error", "data-testid": "token", "data-first": true,
  });
  const button = h("button", { type: "submit", class: "button primary", "data-testid": "log-in" }, "Log in");
  const form = h("form", { class: "panel log-in", novalidate: true },
    viewHead("Log in"),
    h("label", { for: "token" }, "Token"), field, error.element, button,
    h("p", { class: "muted" }, "An administrator creates tokens."));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(field, button, error);
  });
  main.append(form);
  // The address does not change: after the log-in, the requested view is shown.
  if (currentRoute().path[0] !== "overview") form.append(h("p", { class: "muted" }, "The requested page is shown after the log-in."));
}

async function submit(field, button, error) {
  const token = field.value.trim();
  if (token === "") {
    error.fail(new Error("Enter your token."));
    field.focus();
    return;
  }
  if (button.disabled) return;
  button.disabled = true;
  error.fail(null);
  try {
    await logIn(token);
  } catch (fault) {
    error.fail(fault);
    field.select();
  } finally {
    button.disabled = false;
  }
}
