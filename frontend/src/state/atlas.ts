/** The atlas of the model that is served, and what of it a person looks at; kept while the page is open. */
import { useQuery } from "@tanstack/react-query";
import { create } from "zustand";
import { getAtlas } from "@/api/atlas";
import type { Atlas } from "@/core/atlas";
import type { AtlasFilter, Order } from "@/core/atlasview";
import { HOME, type View } from "@/core/orbit";
import { keys, queryClient } from "./queries";
import { useTelemetry } from "./telemetry";

/**
 * One for all pages. `again`: a refusal is no last word, who comes asks anew; else what was said
 * before holds.
 */
export function useAtlas(again: boolean) {
  // Another model has another atlas.
  const model = useTelemetry(({ state }) => state?.model?.id ?? "");
  const connecting = useTelemetry(({ status }) => status === "connecting");
  return useQuery({
    // Soon it will be known which model it is; to ask before would be to ask twice.
    enabled: !connecting,
    queryKey: keys.atlas(model),
    queryFn: ({ signal, queryKey }) =>
      getAtlas(queryClient.getQueryData<Atlas>(queryKey) ?? null, signal),
    retryOnMount: again,
    // Arrays of numbers: to compare them costs more than to take the new ones.
    structuralSharing: false,
    // To ask costs little: the server says whether there is another version.
    staleTime: 60_000,
  });
}

interface AtlasView {
  table: boolean;
  filter: AtlasFilter;
  order: Order;
  /** Index of the expert that is looked at; -1: none. */
  selected: number;
  /** This browser can draw in three dimensions, as far as is known. */
  drawable: boolean;
}

export const ALL: AtlasFilter = { topics: [], kind: "all", query: "" };

export const useAtlasView = create<AtlasView>()(() => ({
  table: false,
  filter: ALL,
  order: { column: "expert", down: false },
  selected: -1,
  // Whether the graphics card goes along shows when it is to draw.
  drawable: typeof WebGL2RenderingContext !== "undefined",
}));

export const setAtlasView = (change: Partial<AtlasView>): void => useAtlasView.setState(change);

export function setFilter(change: Partial<AtlasFilter>): void {
  useAtlasView.setState(({ filter }) => ({ filter: { ...filter, ...change } }));
}

/** Shows this topic too, or no longer; none chosen shows all. */
export function toggleTopic(name: string): void {
  const { topics } = useAtlasView.getState().filter;
  setFilter({
    topics: topics.includes(name) ? topics.filter((one) => one !== name) : [...topics, name],
  });
}

/** Where the camera is, and where it is to be; they change with every frame, so no component hears. */
export const cameraView: View = { ...HOME };
export const cameraTarget: View = { ...HOME };
