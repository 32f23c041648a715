// A row of filters above a list; each combination has its own address, which can be bookmarked and shared.

import { freshId, h } from "./dom.js";
import { routeTo } from "../core/router.js";

/**
 * @typedef {object} Field
 * @property {string} name of the parameter in the address
 * @property {string} title
 * @property {string | null} value
 * @property {"text"} [type]
 * @property {[string, string][]} [options] values and labels of a selection
 * @property {Record<string, any>} [attributes] of the input
 */

/**
 * @param {string} label of the form, for a screen reader
 * @param {string[]} path path of the view
 * @param {Field[]} fields
 * @returns {HTMLElement}
 */
export function filterForm(label, path, fields) {
  const controls = fields.map(makeControl);
  const form = h("form", { class: "filters", role: "search", "aria-label": label },
    controls.map(({ node }) => node),
    h("button", { type: "submit", class: "button" }, "Apply"),
    fields.some(({ value }) => value) && h("a", { class: "button", href: routeTo(path) }, "Clear"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = routeTo(path, Object.fromEntries(controls.map(({ name, input }) => [name, input.value.trim()])));
  });
  return form;
}

function makeControl({ name, title, value, options, attributes = {} }) {
  const id = freshId(name);
  const common = { id, name, "data-testid": `filter-${name}`, ...attributes };
  const input = options
    ? h("select", common, options.map(([option, optionLabel]) => h("option", { value: option }, optionLabel)))
    : h("input", { ...common, type: "text", autocomplete: "off", autocapitalize: "none", spellcheck: "false", maxlength: "255" });
  input.value = value ?? "";
  return { name, input, node: h("div", { class: "field" }, h("label", { for: id }, title), input) };
}
