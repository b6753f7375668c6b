/** How the elements of an answer are shown, while it grows and when it is complete. */
import type { Element, ElementContent } from "hast";
import type { ReactNode } from "react";
import type { Components } from "react-markdown";
import { CodeBlock } from "./CodeBlock";
import { address } from "./sanitize";

function Link({ to, children }: { to: string; children: ReactNode }) {
  return to ? (
    <a href={to} target="_blank" rel="noreferrer noopener nofollow">
      {children}
    </a>
  ) : (
    <span>{children}</span>
  );
}

function textOf(nodes: readonly ElementContent[]): string {
  return nodes
    .map((node) =>
      node.type === "text" ? node.value : node.type === "element" ? textOf(node.children) : "",
    )
    .join("");
}

function codeOf(pre: Element | undefined): { language: string; code: string } {
  const inner = pre?.children.find((child) => child.type === "element");
  const names = inner?.properties["className"];
  const name = Array.isArray(names) ? names.map(String).find((n) => n.startsWith("language-")) : "";
  return {
    language: (name ?? "").replace(/^language-/, ""),
    code: textOf(pre?.children ?? []).replace(/\n$/, ""),
  };
}

function elements(live: boolean): Components {
  return {
    a: ({ href, children }) => <Link to={href ?? ""}>{children}</Link>,
    img: ({ src, alt }) => {
      const target = typeof src === "string" ? address(src) : "";
      return <Link to={target}>{alt || target}</Link>;
    },
    table: ({ children }) => (
      // biome-ignore lint/a11y/noNoninteractiveTabindex: a wide table is scrolled with the keyboard
      <div className="scroll-x" tabIndex={0}>
        <table>{children}</table>
      </div>
    ),
    pre: ({ node }) => <CodeBlock {...codeOf(node)} live={live} />,
  };
}

export const DONE = elements(false);
export const GROWING = elements(true);
