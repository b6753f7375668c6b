/** Keeps a canvas drawn: with each map that comes, and whenever it is to be seen another way. */
import { useEffect, useState } from "react";
import { NONE_ROUTED } from "@/core/expertmap";
import { useExperts } from "@/state/experts";
import { watchExperts } from "@/state/telemetry";
import { Painter, type View } from "./painter";

/** Asks for so many maps a second while it is mounted. `view` null: not known yet. */
export function usePainter(
  canvas: HTMLCanvasElement | null,
  view: View | null,
  perSecond: number,
): void {
  const [painter, setPainter] = useState<Painter | null>(null);

  useEffect(() => {
    if (!canvas) return;
    const made = new Painter(canvas);
    setPainter(made);
    return () => made.dispose();
  }, [canvas]);

  useEffect(() => {
    if (painter && view) painter.look(view);
  }, [painter, view]);

  useEffect(() => {
    if (!painter) return;
    const { map } = useExperts.getState();
    if (map) painter.take(map, NONE_ROUTED);
    return useExperts.subscribe(({ map: next, routed }, before) => {
      if (next && next !== before.map) painter.take(next, routed);
    });
  }, [painter]);

  useEffect(() => watchExperts(perSecond), [perSecond]);
}
