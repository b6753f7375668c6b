/** A block of code: language, copy button, and colours once the highlighter has been loaded. */
import type { Root } from "hast";
import { toJsxRuntime } from "hast-util-to-jsx-runtime";
import { Check, Copy, WrapText } from "lucide-react";
import { memo, type ReactNode, useEffect, useState } from "react";
import { Fragment, jsx, jsxs } from "react/jsx-runtime";
import { useTranslation } from "react-i18next";
import { IconButton } from "@/ui/Button";
import { copyText } from "@/ui/files";

interface CodeBlockProps {
  language: string;
  code: string;
  /** It still grows: colours come when it is complete, unless it is short. */
  live: boolean;
}

// Highlighting more than this takes longer than a frame.
const MOST_LIVE = 4000;
const MOST = 60_000;

export const CodeBlock = memo(function CodeBlock({ language, code, live }: CodeBlockProps) {
  const { t } = useTranslation();
  const [copied, setCopied] = useState(false);
  const [wrap, setWrap] = useState(false);
  const colours = useColours(language, code.length <= (live ? MOST_LIVE : MOST) ? code : null);

  async function copy(): Promise<void> {
    setCopied(await copyText(code));
    setTimeout(() => setCopied(false), 1500);
  }

  return (
    <div className="group/code overflow-hidden rounded-md border border-line bg-surface-1">
      <div
        data-nocopy
        className="flex h-8 items-center justify-between border-line border-b bg-surface-2 pr-0.5 pl-3"
      >
        <span className="font-mono text-text-3 text-xs">{language || t("chat.code")}</span>
        <span className="flex">
          <IconButton
            icon={WrapText}
            label={t("chat.wrap")}
            aria-pressed={wrap}
            active={wrap}
            small
            onClick={() => setWrap(!wrap)}
          />
          <IconButton
            icon={copied ? Check : Copy}
            label={copied ? t("chat.copied") : t("chat.copyCode")}
            small
            onClick={() => void copy()}
          />
        </span>
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: code that is wider than the page is scrolled with the keyboard */}
      <pre tabIndex={0} className="code overflow-x-auto p-3">
        <code className={wrap ? "whitespace-pre-wrap" : undefined}>{colours ?? code}</code>
      </pre>
    </div>
  );
});

function useColours(language: string, code: string | null): ReactNode {
  const [colours, setColours] = useState<{ code: string; node: ReactNode } | null>(null);
  useEffect(() => {
    if (code === null || language === "") return;
    let current = true;
    void import("./highlighter").then(({ highlight }) => {
      const tree = current ? highlight(language, code) : null;
      if (tree) setColours({ code, node: render(tree) });
    });
    return () => {
      current = false;
    };
  }, [language, code]);
  if (code === null || colours === null) return null;
  if (colours.code === code) return colours.node;
  // While code grows, what has come since the colours were made stands behind them.
  return code.startsWith(colours.code) ? (
    <>
      {colours.node}
      {code.slice(colours.code.length)}
    </>
  ) : null;
}

function render(tree: Root): ReactNode {
  return toJsxRuntime(tree, { Fragment, jsx, jsxs }) as ReactNode;
}
