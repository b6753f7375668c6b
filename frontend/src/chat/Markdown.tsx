/**
 * A model's markdown, as safe elements: no HTML of its own, no addresses but http, https and mailto,
 * no images from elsewhere (a picture's address could carry away what the chat is about).
 *
 * Each block is rendered by itself, and again only if it has changed. A block that is too large for
 * the parser, or that breaks it, is shown as plain text.
 */
import { memo, useEffect, useMemo, useState } from "react";
import ReactMarkdown from "react-markdown";
import { endsInFence, splitBlocks } from "@/core/blocks";
import { mayHaveFormulas, prepareFormulas } from "@/core/formulas";
import { Boundary } from "@/ui/Boundary";
import { CodeBlock } from "./CodeBlock";
import { DONE, GROWING } from "./elements";
import { address, REHYPE, REMARK } from "./sanitize";

type Formulas = typeof import("./formulas");

/** Longer blocks are shown as they are, fences excepted. */
const MOST_CHARACTERS = 24_000;

interface MarkdownProps {
  text: string;
  /** More is coming. */
  live?: boolean;
}

export const Markdown = memo(function Markdown({ text, live = false }: MarkdownProps) {
  const blocks = useMemo(() => splitBlocks(text), [text]);
  const formulas = useFormulas(mayHaveFormulas(text));
  return (
    <div className="prose">
      {blocks.map((block, at) => (
        <Block
          // biome-ignore lint/suspicious/noArrayIndexKey: blocks only ever grow at the end
          key={at}
          source={block}
          live={live && at === blocks.length - 1}
          formulas={formulas}
        />
      ))}
    </div>
  );
});

let loaded: Formulas | null = null;

function useFormulas(wanted: boolean): Formulas | null {
  const [formulas, setFormulas] = useState(loaded);
  useEffect(() => {
    if (!wanted || formulas) return;
    void import("./formulas").then((module) => {
      loaded = module;
      setFormulas(module);
    });
  }, [wanted, formulas]);
  return formulas;
}

interface BlockProps {
  source: string;
  live: boolean;
  formulas: Formulas | null;
}

const Block = memo(function Block({ source, live, formulas }: BlockProps) {
  const plain = <div className="block whitespace-pre-wrap">{source}</div>;
  if (source.length > MOST_CHARACTERS) return <Large source={source} live={live} />;
  return (
    <Boundary about={source} fallback={() => plain}>
      <div className="block">
        <Parsed source={source} live={live} formulas={formulas} />
      </div>
    </Boundary>
  );
});

/** One fence is shown as code however large it is; anything else as it stands. */
function Large({ source, live }: { source: string; live: boolean }) {
  const fence = /^\s{0,3}(`{3,}|~{3,})([^\n`]*)\n([\s\S]*?)(?:\n\s{0,3}\1\s*)?$/.exec(source);
  if (!fence) return <div className="block whitespace-pre-wrap">{source}</div>;
  return (
    <div className="block">
      <CodeBlock language={(fence[2] ?? "").trim()} code={fence[3] ?? ""} live={live} />
    </div>
  );
}

function Parsed({ source, live, formulas }: BlockProps) {
  const open = live && endsInFence(source);
  const components = open ? GROWING : DONE;
  if (!formulas || !mayHaveFormulas(source)) {
    return (
      <ReactMarkdown
        remarkPlugins={REMARK}
        rehypePlugins={REHYPE}
        urlTransform={address}
        components={components}
      >
        {source}
      </ReactMarkdown>
    );
  }
  return (
    <ReactMarkdown
      remarkPlugins={[...REMARK, formulas.remark]}
      rehypePlugins={[...REHYPE, formulas.rehype]}
      urlTransform={address}
      components={components}
    >
      {prepareFormulas(source)}
    </ReactMarkdown>
  );
}
