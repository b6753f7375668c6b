/** The colours of topics as the theme has them: names for styles, numbers for the picture. */
import type { Atlas } from "@/core/atlas";
import { COLOURS, type Colour, colourOf } from "@/core/galaxy";

/** The CSS colour of a topic. */
export function topicColour(atlas: Atlas, topic: number): string {
  return `var(--topic-${colourOf(atlas.ring[topic] ?? 0, atlas.topics.length) + 1})`;
}

export function readPalette(): Colour[] {
  const style = getComputedStyle(document.documentElement);
  return Array.from({ length: COLOURS }, (_, at) => {
    const value = style.getPropertyValue(`--topic-${at + 1}`).trim();
    const part = (from: number) => Number.parseInt(value.slice(from, from + 2), 16) || 0;
    return [part(1), part(3), part(5)] as const;
  });
}
