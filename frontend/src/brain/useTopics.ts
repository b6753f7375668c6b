/** Topics of an expert, where the model has a measured atlas. */
import { HttpError } from "@/api/http";
import { indexOf, topTopics } from "@/core/atlas";
import { useAtlas } from "@/state/atlas";

interface Topics {
  /** The topics it is asked for most, the first first; shares 0 to 1. */
  shares: { name: string; share: number }[];
  specialist: boolean;
}

export interface Measured {
  /** Null: this expert was asked for too seldom to say, or there is no atlas. */
  topics: Topics | null;
  /** There is no atlas yet. */
  missing: boolean;
  /** It is not known yet whether there is one. */
  waiting: boolean;
  /** Why it could not be read. */
  problem: string | null;
}

/** `most`: how many topics at most. Both numbers null: none is asked for. */
export function useTopics(layer: number | null, expert: number | null, most: number): Measured {
  // Pointing at cells does not ask again for an atlas that is not there.
  const { data: atlas, error, isPending } = useAtlas(false);
  const missing = error instanceof HttpError && error.status === 404;
  const state = {
    missing,
    waiting: isPending,
    problem: !atlas && error && !missing ? error.message : null,
  };
  const at = atlas && layer !== null && expert !== null ? indexOf(atlas, layer, expert) : -1;
  if (!atlas || at < 0) return { ...state, topics: null };
  const shares = topTopics(atlas, at, most).map(({ topic, share }) => ({
    name: atlas.topics[topic] ?? "",
    share,
  }));
  return { ...state, topics: { shares, specialist: atlas.specialist[at] === 1 } };
}
