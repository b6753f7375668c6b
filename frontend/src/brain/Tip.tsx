/** What the pointer is on, beside it. Screen readers hear the same from the keys. */
import { useEffect, useState } from "react";
import type { Rect } from "@/core/cortex";
import { percent } from "@/core/format";
import { useExperts } from "@/state/experts";
import { factsOf, useWords } from "./cell";
import { TierName } from "./TierName";
import { useTopics } from "./useTopics";

const EVERY_MS = 250;

interface TipProps {
  cell: number;
  layers: readonly number[];
  rect: Rect;
}

export function Tip({ cell, layers, rect }: TipProps) {
  const words = useWords();
  const [map, setMap] = useState(() => useExperts.getState().map);
  useEffect(() => {
    const timer = setInterval(() => setMap(useExperts.getState().map), EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  const [box, setBox] = useState<HTMLDivElement | null>(null);
  const facts = map && cell < map.tiers.length ? factsOf(map, layers, cell) : null;
  const { topics } = useTopics(facts?.layer ?? null, facts?.expert ?? null, 1);
  if (!facts) return null;
  // Beside the cell where there is room, on the other side where there is not.
  const room = box?.offsetParent?.clientWidth ?? 0;
  const width = box?.offsetWidth ?? 0;
  const after = rect.x + rect.width + 10;
  const left = after + width > room ? Math.max(0, rect.x - width - 10) : after;
  const height = box?.offsetParent?.clientHeight ?? 0;
  const top = Math.max(0, Math.min(rect.y - 6, height - (box?.offsetHeight ?? 0)));
  return (
    <div
      ref={setBox}
      aria-hidden="true"
      className="figures pointer-events-none absolute z-10 w-max max-w-56 rounded-sm border border-line bg-surface-1 px-2.5 py-1.5 text-text-1 text-xs shadow-float"
      style={{ left, top }}
    >
      <p className="font-medium">{words.name(facts)}</p>
      <p className="mt-0.5">
        <TierName tier={facts.tier} />
      </p>
      <p className="text-text-2">{words.heat(facts)}</p>
      <p className="text-text-2">{words.hits(facts)}</p>
      {topics?.shares.map(({ name, share }) => (
        <p key={name} className="truncate text-text-2">
          {name} {percent(share)}
        </p>
      ))}
    </div>
  );
}
