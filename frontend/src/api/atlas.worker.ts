/**
 * Fetches the atlas and makes arrays of it, beside the page: for a large model that is a megabyte of
 * JSON and half a million steps, in which the page would not answer.
 */
import { type Atlas, readAtlas } from "@/core/atlas";
import type { ErrorAnswer } from "@/core/failure";
import { errorOf, HttpError } from "./http";

/** What the worker answers, once: the atlas, that it is the one already known, or why there is none. */
export type AtlasReply =
  | { kind: "atlas"; atlas: Atlas }
  | { kind: "same" }
  | { kind: "refused"; answer: ErrorAnswer }
  | { kind: "failed"; message: string };

const reply = (answer: AtlasReply, moved: Transferable[] = []): void =>
  // A worker's own `postMessage`; the types know that of a window only.
  (self.postMessage as (answer: AtlasReply, moved: Transferable[]) => void)(answer, moved);

/** `known`: the version that the page has, or null. */
async function run(known: string | null): Promise<void> {
  try {
    const answer = await fetch("/api/atlas", known ? { headers: { "If-None-Match": known } } : {});
    if (answer.status === 304) return reply({ kind: "same" });
    if (!answer.ok) throw new HttpError(await errorOf(answer));
    const atlas = readAtlas(await answer.json(), answer.headers.get("etag"));
    const arrays = Object.values(atlas).filter(ArrayBuffer.isView);
    reply(
      { kind: "atlas", atlas },
      arrays.map(({ buffer }) => buffer as ArrayBuffer),
    );
  } catch (error) {
    if (error instanceof HttpError) reply({ kind: "refused", answer: error.answer });
    else reply({ kind: "failed", message: String(error) });
  }
}

self.onmessage = ({ data }: MessageEvent<string | null>) => void run(data);
