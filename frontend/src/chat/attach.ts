/** Text files for a message: read here, sent as text. */

export interface TextFile {
  type: "file";
  name: string;
  text: string;
}

export type Refusal = "too_large" | "not_text" | "empty";

/** A book has about this much; more fills any context. */
export const MOST_BYTES = 2_000_000;

/** Reads a file, or says why it is no use to a model that reads text. */
export async function readTextFile(file: File): Promise<TextFile | Refusal> {
  if (file.size > MOST_BYTES) return "too_large";
  if (file.size === 0) return "empty";
  const data = new Uint8Array(await file.arrayBuffer());
  const text = decode(data);
  return text === null ? "not_text" : { type: "file", name: file.name, text };
}

function decode(data: Uint8Array): string | null {
  const wide =
    data[0] === 0xff && data[1] === 0xfe
      ? "utf-16le"
      : data[0] === 0xfe && data[1] === 0xff
        ? "utf-16be"
        : null;
  if (wide) return new TextDecoder(wide).decode(data);
  if (data.includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(data);
  } catch {
    // Old text files; pictures and archives have zero bytes and did not get here.
    return new TextDecoder("windows-1252").decode(data);
  }
}
