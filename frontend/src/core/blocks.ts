/**
 * Cuts markdown into blocks that can be rendered one by one, so that a growing answer parses its
 * last block again and not all of it.
 *
 * A cut is made at a blank line outside of fences and formulas, where the next line neither goes on
 * with a list nor is indented. Text with definitions that reach over blocks (`[1]: address`,
 * footnotes) stays whole.
 */

const FENCE = /^ {0,3}(?:[-*+] |\d{1,9}[.)] |> ?)* *(`{3,}|~{3,})(.*)$/;
const LIST = /^ {0,3}(?:[-*+]|\d{1,9}[.)])(?:\s|$)/;
const DEFINITION = /^ {0,3}\[[^\]\n]{1,200}\]:/m;

export function splitBlocks(text: string): string[] {
  if (text === "") return [];
  if (DEFINITION.test(text)) return [text];
  const lines = text.split("\n");
  const blocks: string[] = [];
  let block: string[] = [];
  let fence: string | null = null;
  let formula = false;
  let list = false;
  let blank = false;

  for (const line of lines) {
    const empty = line.trim() === "";
    if (blank && !empty && fence === null && !formula) {
      const goesOn = /^(?: {2,}|\t)/.test(line) || (list && LIST.test(line));
      if (!goesOn && block.length > 0) {
        blocks.push(block.join("\n"));
        block = [];
      }
    }
    if (block.length === 0) list = LIST.test(line);
    const mark = formula ? null : FENCE.exec(line);
    if (fence !== null) {
      const close = /^\s*(?:> ?)*\s*(`{3,}|~{3,})\s*$/.exec(line)?.[1];
      if (close?.startsWith(fence)) fence = null;
    } else if (mark?.[1] && !(mark[1].startsWith("`") && mark[2]?.includes("`"))) {
      fence = mark[1];
    } else if (opensFormula(line, formula)) {
      formula = !formula;
    }
    block.push(line);
    blank = empty;
  }
  if (block.length > 0) blocks.push(block.join("\n"));
  return blocks;
}

/** Whether this line changes from outside to inside of a displayed formula, or back. */
function opensFormula(line: string, inside: boolean): boolean {
  const trimmed = line.trim();
  if (inside) return trimmed.endsWith("$$") || trimmed.endsWith("\\]");
  if (trimmed.startsWith("$$")) return !(trimmed.length > 4 && trimmed.endsWith("$$"));
  return trimmed.startsWith("\\[") && !trimmed.endsWith("\\]");
}

/** Whether the text ends inside a fence that is still open. */
export function endsInFence(block: string): boolean {
  let fence: string | null = null;
  for (const line of block.split("\n")) {
    if (fence === null) {
      fence = FENCE.exec(line)?.[1] ?? null;
    } else {
      const close = /^\s*(?:> ?)*\s*(`{3,}|~{3,})\s*$/.exec(line)?.[1];
      if (close?.startsWith(fence)) fence = null;
    }
  }
  return fence !== null;
}
