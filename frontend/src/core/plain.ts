/** The text of rendered markdown, as somebody would type it: for copying without marks. */

const BLOCKS = new Set([
  "P",
  "DIV",
  "H1",
  "H2",
  "H3",
  "H4",
  "H5",
  "H6",
  "LI",
  "TR",
  "PRE",
  "UL",
  "OL",
]);
const BLOCKS_TOO = new Set(["BLOCKQUOTE", "TABLE", "HR", "SECTION", "FIGURE", "DETAILS"]);

/** Elements with `data-nocopy` (buttons, labels) are left out; formulas give their TeX source. */
export function plainText(root: Node): string {
  return gather(root, false)
    .replace(/[ \t]+\n/g, "\n")
    .replace(/\n{3,}/g, "\n\n")
    .trim();
}

function gather(node: Node, pre: boolean): string {
  if (node.nodeType === Node.TEXT_NODE) {
    const text = node.nodeValue ?? "";
    return pre ? text : text.replace(/\s+/g, " ");
  }
  if (!(node instanceof Element)) return children(node, pre);
  if (node.hasAttribute("data-nocopy")) return "";
  if (node.classList.contains("katex")) {
    return node.querySelector("annotation")?.textContent ?? node.textContent ?? "";
  }
  const name = node.tagName;
  if (name === "BR") return "\n";
  if (name === "LI") return `\n${marker(node)}${children(node, pre).trim()}\n`;
  if (name === "TD" || name === "TH") return `${children(node, pre).trim()}\t`;
  if (name === "TR") return `${children(node, pre).trimEnd()}\n`;
  const text = children(node, pre || name === "PRE");
  if (name === "UL" || name === "OL") return `\n${text.replace(/\n{2,}/g, "\n")}\n`;
  return BLOCKS.has(name) || BLOCKS_TOO.has(name) ? `\n\n${text}\n\n` : text;
}

function children(node: Node, pre: boolean): string {
  return [...node.childNodes].map((child) => gather(child, pre)).join("");
}

function marker(item: Element): string {
  const list = item.parentElement;
  if (list?.tagName !== "OL") return "- ";
  const start = Number(list.getAttribute("start") ?? 1);
  return `${start + [...list.children].indexOf(item)}. `;
}
