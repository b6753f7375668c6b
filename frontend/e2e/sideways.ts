/** Whether a page fits its width. */
import type { Page } from "playwright-core";

/** Elements that can be scrolled to the side without being made for it, and the page itself. */
export function sidewaysScrollers(page: Page): Promise<string[]> {
  return page.evaluate(() =>
    [document.documentElement, ...document.querySelectorAll<HTMLElement>("body *")]
      .filter((element) => {
        if (element.scrollWidth - element.clientWidth <= 1 || element.clientWidth === 0)
          return false;
        const { overflowX, clipPath } = getComputedStyle(element);
        if (element === document.documentElement) return true;
        // What is cut off on purpose: an ellipsis, a hidden label.
        return (
          overflowX !== "visible" &&
          overflowX !== "hidden" &&
          overflowX !== "clip" &&
          clipPath === "none"
        );
      })
      // Code, tables and formulas of an answer scroll by themselves, so that the page does not.
      .filter((element) => !element.closest("pre, .markdown table, .katex-display, [data-wide]"))
      .map((element) => element.outerHTML.slice(0, 200)),
  );
}
