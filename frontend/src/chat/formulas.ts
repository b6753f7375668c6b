/** Formulas: the parser's and KaTeX's part, a chunk of its own that is loaded with the first one. */
import "katex/dist/katex.min.css";
import rehypeKatex from "rehype-katex";
import remarkMath from "remark-math";

export const remark = remarkMath;
// What KaTeX cannot read stays visible as it is; it never loads or links anything.
export const rehype: [typeof rehypeKatex, object] = [
  rehypeKatex,
  { throwOnError: false, errorColor: "var(--danger)", trust: false, maxExpand: 200, strict: false },
];
