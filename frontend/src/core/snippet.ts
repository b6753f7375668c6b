/** Settings of other programs to copy, with this server's own values in their places. */

export interface Block {
  /** The file that it belongs in; none: a terminal, a form. */
  file?: string;
  language: string;
  text: string;
}

export interface Client {
  id: string;
  name: string;
  blocks: Block[];
}

export interface Values {
  /** Without a slash at the end. */
  url: string;
  model: string;
  key: string;
  context: number;
}

export function fill(text: string, { url, model, key, context }: Values): string {
  return text
    .replaceAll("%URL%", url)
    .replaceAll("%MODEL%", model)
    .replaceAll("%KEY%", key)
    .replaceAll("%CONTEXT%", String(context));
}
