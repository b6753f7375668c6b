/**
 * Prepares formulas for the markdown parser, which knows dollar signs only.
 *
 * Models write `\( \)` and `\[ \]` as well; and in prose a dollar sign is money. A pair of dollars
 * is a formula if the first is followed and the second preceded by no space, no digit follows the
 * second, and both stand in one paragraph; all other dollars are escaped. Code stays as it is.
 */

export function mayHaveFormulas(text: string): boolean {
  return text.includes("$") || text.includes("\\(") || text.includes("\\[");
}

export function prepareFormulas(text: string): string {
  let result = "";
  for (let at = 0; at < text.length; ) {
    const code = codeAt(text, at);
    if (code > at) {
      result += text.slice(at, code);
      at = code;
      continue;
    }
    const formula = formulaAt(text, at);
    if (formula) {
      result += formula.text;
      at = formula.end;
      continue;
    }
    if (text[at] === "\\" && at + 1 < text.length) {
      result += text.slice(at, at + 2);
      at += 2;
      continue;
    }
    result += text[at] === "$" ? "\\$" : text[at];
    at++;
  }
  return result;
}

/** The end of a fence or code span that begins here; `at` if there is none. */
function codeAt(text: string, at: number): number {
  const character = text[at];
  if (character !== "`" && character !== "~") return at;
  let run = at;
  while (text[run] === character) run++;
  const length = run - at;
  const lineStart = text.lastIndexOf("\n", at - 1) + 1;
  const fence = length >= 3 && text.slice(lineStart, at).trim() === "";
  if (character === "~" && !fence) return at;
  if (fence) {
    const close = text.indexOf(`\n${character.repeat(length)}`, run);
    const end = close < 0 ? -1 : text.indexOf("\n", close + 1);
    return end < 0 ? text.length : end;
  }
  for (let next = text.indexOf("`", run); next >= 0; ) {
    let end = next;
    while (text[end] === "`") end++;
    if (end - next === length) return end;
    next = text.indexOf("`", end);
  }
  return run;
}

interface Formula {
  text: string;
  end: number;
}

function formulaAt(text: string, at: number): Formula | null {
  if (text.startsWith("\\(", at)) return between(text, at, "\\(", "\\)", "$");
  if (text.startsWith("\\[", at)) return between(text, at, "\\[", "\\]", "$$");
  if (text.startsWith("$$", at)) return between(text, at, "$$", "$$", "$$");
  return text[at] === "$" ? single(text, at) : null;
}

function between(
  text: string,
  at: number,
  open: string,
  close: string,
  mark: string,
): Formula | null {
  const start = at + open.length;
  const end = text.indexOf(close, start);
  if (end < 0) return null;
  const inside = text.slice(start, end);
  if (inside.trim() === "" || inside.includes("\n\n")) return null;
  const done = end + close.length;
  if (mark === "$") return { text: `$${inside.trim()}$`, end: done };
  // A displayed formula needs lines of its own; inside a line it is set like the others.
  const lineStart = text.lastIndexOf("\n", at - 1) + 1;
  const indent = text.slice(lineStart, at);
  const lineEnd = text.indexOf("\n", done);
  const after = text.slice(done, lineEnd < 0 ? text.length : lineEnd);
  if (indent.trim() !== "" || after.trim() !== "") {
    return { text: `$$${inside.trim().replace(/\s*\n\s*/g, " ")}$$`, end: done };
  }
  const body = inside.trim().replaceAll("\n", `\n${indent}`);
  return { text: `$$\n${indent}${body}\n${indent}$$`, end: done };
}

function single(text: string, at: number): Formula | null {
  if (!/\S/.test(text[at + 1] ?? "")) return null;
  for (let end = at + 1; end < text.length; end++) {
    const character = text[end];
    if (character === "\\") end++;
    else if (character === "`" || (character === "\n" && text[end + 1] === "\n")) return null;
    else if (character === "$") {
      const spaced = /\s/.test(text[end - 1] ?? "");
      const digit = /[\d$]/.test(text[end + 1] ?? "");
      return spaced || digit || end === at + 1
        ? null
        : { text: text.slice(at, end + 1), end: end + 1 };
    }
  }
  return null;
}
