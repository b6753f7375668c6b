/** How many tokens a prompt really has, counted by our server once nothing more is being typed. */
import { useEffect, useState } from "react";
import { countTokens } from "@/api/openai";
import { pathTo, type Tree } from "@/core/tree";
import type { ChatSettings, Message, Part } from "@/core/types";
import { countBody, wireMessages } from "@/core/wire";
import { currentServer } from "@/state/session";

/** Below this a guess is as good; the question would be more work than the answer is worth. */
const LEAST_CHARACTERS = 400;
const PAUSE_MS = 600;

/**
 * Null: not counted, because it is short, still being typed, or the server does not count. The count
 * belongs to these very values: with any other it is null again.
 */
export function useCounted(
  tree: Tree | null,
  settings: ChatSettings,
  text: string,
  files: readonly Part[],
): number | null {
  const [counted, setCounted] = useState<number | null>(null);
  useEffect(() => {
    setCounted(null);
    const length = files.reduce((sum, part) => sum + ("text" in part ? part.text.length : 0), 0);
    const server = currentServer();
    if (!server.own || text.length + length < LEAST_CHARACTERS) return;
    const stale = new AbortController();
    const timer = setTimeout(() => {
      const path = [...(tree ? pathTo(tree, tree.active) : []), unsent(text, files)];
      const body = countBody(wireMessages(path, settings), settings);
      // Without an answer the guess stands.
      if (body) countTokens(server, body, stale.signal).then(setCounted, () => undefined);
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      stale.abort();
    };
  }, [tree, settings, text, files]);
  return counted;
}

function unsent(text: string, files: readonly Part[]): Message {
  const parts: Part[] = [...files, { type: "text", text }];
  return {
    id: "",
    parent: null,
    role: "user",
    parts,
    meta: {},
    created_at_ms: 0,
    updated_at_ms: 0,
  };
}
