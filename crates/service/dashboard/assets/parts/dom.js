// Creates elements. Text becomes text nodes only: no string is ever parsed as markup.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";
let lastId = 0;

/**
 * An id that no other element of the page has.
 * @param {string} stem
 * @returns {string}
 */
export function freshId(stem) {
  lastId += 1;
  return `${stem}-${lastId}`;
}

/**
 * An HTML element.
 * @param {string} tag
 * @param {Record<string, any>} [attributes] true sets an empty attribute; null, undefined and false omit the attribute;
 *   `on` contains listeners by event
 * @param {...any} children nodes, texts, numbers, and arrays of these; null, undefined and false are omitted
 * @returns {HTMLElement}
 */
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * An SVG element; see `h`.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...any} children
 * @returns {SVGElement}
 */
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

/**
 * Sets attributes; see `h`.
 * @param {Element} element
 * @param {Record<string, any>} attributes
 */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (/^(on|style$|srcdoc$)/i.test(name)) {
      throw new TypeError(`attribute ${name} would carry code or style`);
    } else if (value === null || value === undefined || value === false) {
      element.removeAttribute(name);
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/**
 * Replaces the children of an element.
 * @param {Element} element
 * @param {...any} children
 */
export function put(element, ...children) {
  element.replaceChildren(...nodes(children));
}

/**
 * Replaces the children of an element only if `value`, which the children display, has changed. An unchanged element keeps the
 * focus, its expanded texts and the position of a screen reader.
 * @param {Element} element
 * @param {any} value any value that can be converted to JSON
 * @param {() => any} make
 */
export function putIfChanged(element, value, make) {
  const json = JSON.stringify(value);
  if (displayedJson.get(element) === json) return;
  displayedJson.set(element, json);
  put(element, make());
}

const displayedJson = new WeakMap();

/**
 * Makes the children of `parent` match `items`. The elements of items that remain are reused, which preserves the focus.
 * @template T
 * @param {Element} parent an element whose children are all created by this function
 * @param {T[]} items
 * @param {(item: T) => string | number} keyOf
 * @param {(item: T) => {node: Element, update: (item: T) => void}} create
 */
export function reconcile(parent, items, keyOf, create) {
  const before = reconciled.get(parent) ?? new Map();
  const after = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!after.has(key)) after.set(key, before.get(key) ?? create(item));
  }
  for (const [key, { node }] of before) if (!after.has(key)) node.remove();
  let position = parent.firstChild;
  for (const item of items) {
    const entry = after.get(keyOf(item));
    entry.update(item);
    if (entry.node === position) position = position.nextSibling;
    else parent.insertBefore(entry.node, position);
  }
  reconciled.set(parent, after);
}

const reconciled = new WeakMap();

function fill(element, attributes, children) {
  set(element, attributes ?? {});
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}
