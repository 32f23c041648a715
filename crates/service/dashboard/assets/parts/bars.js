// Shares as bars. The number is always shown beside the bar, because a bar alone is not accessible.

import { s, set } from "./dom.js";

/**
 * A horizontal bar.
 * @param {string} kind selects color and pattern, see parts.css
 * @returns {{element: SVGElement, show: (share: number | null) => void}}
 */
export function bar(kind) {
  const valueRect = s("rect", { class: "bar-value", height: "100%", width: "0" });
  const element = s("svg", { class: `bar bar-${kind}`, "aria-hidden": "true", focusable: "false" },
    s("rect", { class: "bar-track", height: "100%", width: "100%" }), valueRect);
  const show = (share) => {
    const width = Number.isFinite(share) ? Math.min(Math.max(share, 0), 1) * 100 : 0;
    set(valueRect, { width: `${width.toFixed(2)}%` });
  };
  return { element, show };
}
