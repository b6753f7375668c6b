/** What an answer has shown about its server: how fast it is, and how long its tokens are. */
import type { Server } from "@/api/http";
import type { Answer } from "@/core/answer";
import { blend, learnCharacters } from "@/core/estimate";
import type { WireMessage } from "@/core/wire";
import { type Learnt, setPrefs, usePrefs } from "./prefs";

const NOTHING: Learnt = { prefill: null, decode: null, characters: null };
/** Shorter ones measure overhead. */
const ENOUGH_TOKENS = 16;
const MOST_MODELS = 50;

const name = (server: Server, model: string) => `${server.base} ${model}`;

export function learntOf(learnt: Record<string, Learnt>, server: Server, model: string): Learnt {
  return learnt[name(server, model)] ?? NOTHING;
}

export function learn(
  server: Server,
  model: string,
  wire: readonly WireMessage[],
  answer: Answer,
  turn: { sentAt: number; queueWaitMs: number | null },
): void {
  if (answer.usage === null) return;
  const { learnt } = usePrefs.getState();
  const old = learntOf(learnt, server, model);
  const stats = answer.stats(turn.sentAt, performance.now(), turn.queueWaitMs);
  const prompt = stats.prompt_tokens ?? 0;
  const computed = prompt - (stats.cached_tokens ?? 0);
  const characters = learnCharacters(wire, prompt);
  const next: Learnt = {
    prefill:
      computed < ENOUGH_TOKENS ? old.prefill : blend(old.prefill, stats.prefill_tokens_per_second),
    decode:
      (stats.completion_tokens ?? 0) < ENOUGH_TOKENS
        ? old.decode
        : blend(old.decode, stats.tokens_per_second),
    characters: characters ?? old.characters,
  };
  const others = Object.entries(learnt).filter(([key]) => key !== name(server, model));
  const kept = others.slice(-(MOST_MODELS - 1));
  setPrefs({ learnt: Object.fromEntries([...kept, [name(server, model), next]]) });
}
