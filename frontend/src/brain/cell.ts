/** One expert of the map in words, for whoever shows it: the tip, the details, screen readers. */
import { useTranslation } from "react-i18next";
import { type ExpertMap, TIERS, type TierName } from "@/core/expertmap";
import { count, percent } from "@/core/format";

export interface CellFacts {
  cell: number;
  /** The model's own number of the layer. */
  layer: number;
  expert: number;
  tier: TierName;
  /** 0 to 1: the logarithm of how often it was asked for, 1 for the most wanted one. */
  heat: number;
  hits: number;
}

/** `layers`: the model's layer of each row. */
export function factsOf(map: ExpertMap, layers: readonly number[], cell: number): CellFacts {
  const row = Math.floor(cell / map.cols);
  return {
    cell,
    layer: layers[row] ?? row,
    expert: cell % map.cols,
    tier: TIERS[map.tiers[cell] ?? 0] ?? "disk",
    heat: (map.heat[cell] ?? 0) / 255,
    hits: map.hits[cell] ?? 0,
  };
}

/** The cell of an expert; null: the map has none like that. */
export function cellOf(
  map: Pick<ExpertMap, "rows" | "cols">,
  layers: readonly number[],
  layer: number,
  expert: number,
): number | null {
  const row = layers.indexOf(layer);
  if (row < 0 || row >= map.rows || !(expert >= 0 && expert < map.cols)) return null;
  return row * map.cols + expert;
}

/** Name, tier, heat and uses of an expert, in the language of the page. */
export function useWords() {
  const { t, i18n } = useTranslation();
  const { language } = i18n;
  return {
    name: ({ layer, expert }: CellFacts) => t("brain.name", { layer, expert }),
    tier: ({ tier }: CellFacts) => t(`tier.${tier}`),
    heat: ({ heat }: CellFacts) =>
      heat === 0 ? t("brain.neverAsked") : t("brain.heatOf", { share: percent(heat) }),
    hits: ({ hits }: CellFacts) => t("brain.hits", { count: hits, number: count(hits, language) }),
  };
}
