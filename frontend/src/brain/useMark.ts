/** The marked expert. It stands in the address (`?layer=&expert=`), so it can be linked to. */
import { useEffect, useRef, useState } from "react";
import { useSearchParams } from "react-router";
import type { ExpertMap } from "@/core/expertmap";
import { cellOf, factsOf } from "./cell";

/** Browsers refuse an address that changes with every press of a key that is held. */
const ADDRESS_MS = 300;

type Mark = [
  cell: number | null,
  mark: (cell: number | null) => void,
  /** What the address asks for, where the model has no such expert. */
  missing: { layer: string; expert: string } | null,
];

export function useMark(map: ExpertMap | null, layers: readonly number[]): Mark {
  const [params, setParams] = useSearchParams();
  // Undefined: the address says.
  const [chosen, setChosen] = useState<number | null>();
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);

  const [layer, expert] = [params.get("layer"), params.get("expert")];
  const wanted = map && layer && expert ? cellOf(map, layers, Number(layer), Number(expert)) : null;
  const cell = chosen === undefined ? wanted : chosen;
  const held = map && cell !== null && cell < map.tiers.length ? cell : null;

  function mark(next: number | null): void {
    setChosen(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const facts = map && next !== null ? factsOf(map, layers, next) : null;
      const address = facts ? { layer: `${facts.layer}`, expert: `${facts.expert}` } : {};
      setParams(address, { replace: true });
    }, ADDRESS_MS);
  }

  const missing =
    map && chosen === undefined && wanted === null && layer && expert ? { layer, expert } : null;
  return [held, mark, missing];
}
