/** How full the context will be with what is being typed, and how long the answer may take. */
import { useMemo } from "react";
import { type Estimate, estimateMessages, estimateTokens, estimateTurn } from "@/core/estimate";
import { pathTo, type Tree } from "@/core/tree";
import type { ChatSettings, Part } from "@/core/types";
import { wireMessages } from "@/core/wire";
import { learntOf } from "@/state/learnt";
import { useModels } from "@/state/models";
import { usePrefs } from "@/state/prefs";
import { currentServer } from "@/state/session";
import { useTalkedTo } from "@/state/telemetry";
import { useCounted } from "./useCounted";

export interface TurnEstimate extends Estimate {
  /** Tokens of the whole prompt. */
  prompt: number;
  /** Null: the server does not tell. */
  context: number | null;
}

/** Of an answer whose length nobody knows. */
const USUAL_ANSWER = 300;
const NOTHING: Part[] = [];

export function useEstimate(
  tree: Tree | null,
  settings: ChatSettings,
  text: string,
  files: readonly Part[] = NOTHING,
): TurnEstimate {
  const { model } = useModels();
  const learnt = usePrefs((prefs) => prefs.learnt);
  const decodeNow = useTalkedTo(({ speed }) => speed.decode_average);
  const prefillNow = useTalkedTo(({ speed }) => speed.prefill_average);
  const known = learntOf(learnt, currentServer(), model?.id ?? "");
  const characters = known.characters ?? undefined;

  const before = useMemo(() => {
    const path = tree ? pathTo(tree, tree.active) : [];
    const stats = settings.first === null ? path.at(-1)?.meta.stats : undefined;
    // What the server has counted for the last turn is held there, too.
    const counted = stats?.estimated === false ? stats : undefined;
    const held = counted ? (counted.prompt_tokens ?? 0) + (counted.completion_tokens ?? 0) : 0;
    const all = held || estimateMessages(wireMessages(path, settings), characters);
    return { all, held };
  }, [tree, settings, characters]);

  const counted = useCounted(tree, settings, text, files);

  return useMemo(() => {
    const added = [text, ...files.map((part) => ("text" in part ? part.text : ""))];
    const fresh = added.reduce((sum, piece) => sum + estimateTokens(piece, characters), 0);
    const answerTokens = Math.min(settings.max_tokens ?? USUAL_ANSWER, USUAL_ANSWER * 4);
    const rates = { prefill: prefillNow ?? known.prefill, decode: decodeNow ?? known.decode };
    const prompt = counted ?? before.all + fresh;
    // What is held may be another branch's; never more than there is.
    const held = Math.min(before.held, prompt);
    return {
      ...estimateTurn(prompt - held, held, answerTokens, rates),
      prompt,
      context: model?.context_length ?? null,
    };
  }, [
    before,
    text,
    files,
    counted,
    characters,
    settings.max_tokens,
    known,
    decodeNow,
    prefillNow,
    model,
  ]);
}
