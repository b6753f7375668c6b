/** The colours of pictures of experts, as the theme that is shown has them. */
import { useEffect, useState } from "react";
import type { Colours } from "@/core/cortex";
import { TIERS } from "@/core/expertmap";
import { watchTheme } from "@/ui/screen";

function readColours(): Colours {
  const style = getComputedStyle(document.documentElement);
  // A canvas writes every colour as #rrggbb, however the built stylesheet has shortened it.
  const pen = document.createElement("canvas").getContext("2d");
  const colour = (name: string) => {
    if (!pen) return "#000000";
    pen.fillStyle = style.getPropertyValue(`--cortex-${name}`);
    return String(pen.fillStyle);
  };
  return { ground: colour("ground"), flash: colour("flash"), tiers: TIERS.map(colour) };
}

export function useColours(): Colours {
  const [colours, setColours] = useState(readColours);
  useEffect(() => watchTheme(() => setColours(readColours())), []);
  return colours;
}
