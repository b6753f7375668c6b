/**
 * Reasoning that comes inside the text, between `<think>` tags at its very beginning, as servers
 * send it that do not tell the two apart.
 */

const OPEN = "<think>";
const CLOSE = "</think>";

export interface Split {
  reasoning: string;
  text: string;
}

/** Splits what has arrived so far. A tag that is only begun is held back. */
export function splitThink(content: string): Split {
  const begun = content.trimStart();
  if (OPEN.startsWith(begun.slice(0, OPEN.length)) && begun.length < OPEN.length) {
    return { reasoning: "", text: "" };
  }
  if (!begun.startsWith(OPEN)) return { reasoning: "", text: content };
  const inside = begun.slice(OPEN.length);
  const end = inside.indexOf(CLOSE);
  if (end >= 0) {
    return {
      reasoning: inside.slice(0, end).trim(),
      text: inside.slice(end + CLOSE.length).trimStart(),
    };
  }
  for (let length = CLOSE.length - 1; length > 0; length--) {
    if (inside.endsWith(CLOSE.slice(0, length))) {
      return { reasoning: inside.slice(0, -length).trimStart(), text: "" };
    }
  }
  return { reasoning: inside.trimStart(), text: "" };
}
