/** The models that the server offers, and the one that is talked to. */
import { useQuery } from "@tanstack/react-query";
import { listModels, type ModelInfo } from "@/api/openai";
import { usePrefs } from "./prefs";
import { keys, queryClient } from "./queries";
import { currentServer } from "./session";

export interface Models {
  models: ModelInfo[];
  /** The chosen one if the server has it, else its first. */
  model: ModelInfo | null;
  error: Error | null;
  loading: boolean;
  refetch: () => void;
}

const NONE: ModelInfo[] = [];
// A server that is loading does not know its limits yet; one that is gone may come back.
const AGAIN_MS = 3000;

export function useModels(): Models {
  const base = usePrefs((prefs) => prefs.base);
  const chosen = usePrefs((prefs) => prefs.model);
  const query = useQuery({
    queryKey: keys.models(base),
    queryFn: ({ signal }) => listModels(currentServer(), signal),
    refetchInterval: ({ state }) =>
      state.error || state.data?.some((model) => model.context_length === null && base === "")
        ? AGAIN_MS
        : false,
  });
  const models = query.data ?? NONE;
  return {
    models,
    model: choose(models, chosen),
    error: query.error,
    loading: query.isPending,
    refetch: () => void query.refetch(),
  };
}

function choose(models: readonly ModelInfo[], chosen: string | null): ModelInfo | null {
  return models.find(({ id }) => id === chosen) ?? models[0] ?? null;
}

/** The id of the model to ask, for those who are no component; empty lets the server choose. */
export function currentModelId(): string {
  const { base, model } = usePrefs.getState();
  const models = queryClient.getQueryData<ModelInfo[]>(keys.models(base)) ?? NONE;
  return choose(models, model)?.id ?? model ?? "";
}
