/** The atlas of the model that our own server serves. Contract: docs/dashboard.md. */
import type { Atlas } from "@/core/atlas";
import type { AtlasReply } from "./atlas.worker";
import { HttpError } from "./http";

/**
 * Fetches and reads the atlas in a worker; `known` is returned itself if the server has no other
 * version. Raises HttpError for a refusal (`atlas_missing` names the commands that make one),
 * AbortError after `signal`, and Error if there is no answer or no atlas.
 */
export function getAtlas(known: Atlas | null, signal: AbortSignal): Promise<Atlas> {
  return new Promise((done, failed) => {
    const worker = new Worker(new URL("./atlas.worker.ts", import.meta.url), { type: "module" });
    const end = (settle: () => void) => {
      worker.terminate();
      settle();
    };
    worker.onmessage = ({ data }: MessageEvent<AtlasReply>) =>
      end(() => {
        if (data.kind === "atlas") done(data.atlas);
        else if (data.kind === "same" && known) done(known);
        else if (data.kind === "refused") failed(new HttpError(data.answer));
        else failed(new Error(data.kind === "failed" ? data.message : "no atlas"));
      });
    worker.onerror = ({ message }) => end(() => failed(new Error(message || "no worker")));
    signal.addEventListener("abort", () => end(() => failed(signal.reason)), { once: true });
    worker.postMessage(known?.version ?? null);
  });
}
