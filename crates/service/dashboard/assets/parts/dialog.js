// A confirmation dialog for an action. The dialog names the target, requires a reason, and shows an error of the controller.

import { freshId, h } from "./dom.js";
import { errorLine } from "./panel.js";
import { Action } from "../core/api.js";

/** Closes all dialogs, for example when the view behind them is left. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
}

/**
 * Opens the dialog. Escape and "Cancel" close the dialog, and the focus returns to the element that had the focus before.
 * @param {object} options
 * @param {string} options.title
 * @param {any} options.body effect and target of the action
 * @param {string} options.path path to which the reason is posted
 * @param {string} options.confirm label of the button
 * @param {boolean} [options.danger]
 * @returns {Promise<any | null>} the controller's response, or null if the dialog was cancelled
 */
export function askReason({ title, body, path, confirm, danger = false }) {
  const action = new Action(path);
  const parts = build({ title, body, confirm, danger });
  const { dialog, form, reason, error, confirmButton, cancelButton } = parts;
  const opener = document.activeElement;
  document.body.append(dialog);
  dialog.showModal();
  reason.focus();

  return new Promise((resolve) => {
    let response = null;
    let busy = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (busy) return;
      const text = reason.value.trim();
      if (text === "") return refuseEmpty(reason, error);
      busy = true;
      confirmButton.setAttribute("aria-disabled", "true");
      error.fail(null);
      try {
        response = await action.send({ reason: text });
        dialog.close();
      } catch (fault) {
        error.fail(fault.maybeDone ? new Error(`${fault.message} The action may have been carried out; trying again does not carry it out twice.`) : fault);
        // Status 401: the session has ended, and the dialog would cover the log-in.
        if (fault.status === 401) dialog.close();
      } finally {
        busy = false;
        confirmButton.removeAttribute("aria-disabled");
      }
    });
    // "Cancel" has no effect while the request is in progress, because it could not undo the action.
    cancelButton.addEventListener("click", () => busy || dialog.close());
    dialog.addEventListener("cancel", (event) => busy && event.preventDefault());
    dialog.addEventListener("close", () => {
      dialog.remove();
      if (opener?.isConnected) opener.focus();
      resolve(response);
    });
  });
}

function build({ title, body, confirm, danger }) {
  const [titleId, bodyId, reasonId, errorId] = ["title", "body", "reason", "error"].map(freshId);
  const error = errorLine();
  error.element.id = errorId;
  const reason = h("textarea", { id: reasonId, name: "reason", rows: "3", maxlength: "4000", required: true, autocomplete: "off", "aria-describedby": errorId, "data-testid": "reason" });
  const confirmButton = h("button", { type: "submit", class: danger ? "button danger" : "button primary", "data-testid": "confirm" }, confirm);
  const cancelButton = h("button", { type: "button", class: "button", "data-testid": "cancel" }, "Cancel");
  const form = h("form", { novalidate: true },
    h("h2", { id: titleId }, title),
    h("div", { id: bodyId, class: "dialog-body" }, body),
    h("label", { for: reasonId }, "Reason (stored in the device's history and in the registry audit log)"),
    reason,
    error.element,
    h("div", { class: "actions" }, confirmButton, cancelButton));
  const dialog = h("dialog", { "aria-labelledby": titleId, "aria-describedby": bodyId, "data-testid": "dialog" }, form);
  return { dialog, form, reason, error, confirmButton, cancelButton };
}

function refuseEmpty(reason, error) {
  error.fail(new Error("A reason is required."));
  reason.setAttribute("aria-invalid", "true");
  reason.addEventListener("input", () => {
    reason.removeAttribute("aria-invalid");
    error.fail(null);
  }, { once: true });
  reason.focus();
}
