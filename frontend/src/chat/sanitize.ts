/** What a model's markdown may become: the plugins of the parser, and the addresses that pass. */
import type { Nodes, Root } from "hast";
import type { Options } from "react-markdown";
import rehypeSanitize, { defaultSchema } from "rehype-sanitize";
import remarkGfm from "remark-gfm";
import { visit } from "unist-util-visit";

const SCHEMA: typeof defaultSchema = {
  ...defaultSchema,
  attributes: {
    ...defaultSchema.attributes,
    // Formulas are still marked code when this runs.
    code: [["className", /^language-./, "math-inline", "math-display"]],
  },
  protocols: { ...defaultSchema.protocols, href: ["http", "https", "mailto"] },
};

/** HTML in an answer is text; only a line break, which models write into tables, becomes one. */
function htmlAsText() {
  return (tree: Root) => {
    visit(tree, (node, index, parent) => {
      // `raw` is what the markdown parser calls HTML that it has not read.
      const { type, value } = node as { type: string; value?: string };
      if (type !== "raw" || index === undefined || !parent) return;
      const lineBreak = /^<br\s*\/?>$/i.test((value ?? "").trim());
      const safe: Nodes = lineBreak
        ? { type: "element", tagName: "br", properties: {}, children: [] }
        : { type: "text", value: value ?? "" };
      parent.children[index] = safe as (typeof parent.children)[number];
    });
  };
}

export const REMARK: NonNullable<Options["remarkPlugins"]> = [remarkGfm];
export const REHYPE: NonNullable<Options["rehypePlugins"]> = [htmlAsText, [rehypeSanitize, SCHEMA]];

/** An address that may be followed, or nothing. Relative ones would lead into this page. */
export function address(url: string): string {
  return /^(?:https?:\/\/|mailto:)/i.test(url.trim()) ? url : "";
}
