/** The highlighter and its languages: a chunk of its own, loaded with the first code. */
import type { Root } from "hast";
import { common, createLowlight } from "lowlight";

const lowlight = createLowlight(common);

/** Null for a language that it does not know. */
export function highlight(language: string, code: string): Root | null {
  const name = language.toLowerCase();
  return lowlight.registered(name) ? lowlight.highlight(name, code) : null;
}
