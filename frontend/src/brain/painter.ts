/**
 * Draws a map of experts on a canvas, and draws again only when something has changed or glows.
 *
 * The map is painted with one pixel a cell on a canvas of its own and enlarged from there. While
 * cells glow there is a frame after each other one; when the last has faded there are none until the
 * next map. With `still` (people who want no motion) nothing fades: what was asked for last is bright.
 */
import { decay, heightPx, type Layout, light, type Palette, paint, widthPx } from "@/core/cortex";
import { type ExpertMap, levelsOf, type Routed, type Span } from "@/core/expertmap";

export interface View {
  layout: Layout;
  palette: Palette;
  /** CSS colour of the gaps. */
  ground: string;
  span: Span;
  still: boolean;
  /** Pixels of the whole picture, where cells need not be whole pixels; else as the layout says. */
  boxPx?: { width: number; height: number };
}

const STILL_GLOW = 0.7;
/** After a pause the glow goes on from where it was, instead of being gone. */
const LONGEST_STEP_MS = 100;

export class Painter {
  readonly #canvas: HTMLCanvasElement;
  readonly #small = document.createElement("canvas");
  #image: ImageData | null = null;
  #view: View | null = null;
  #map: ExpertMap | null = null;
  #levels: Uint8Array = new Uint8Array(0);
  #glow = new Float32Array(0);
  #frame = 0;
  #drawnAt = 0;

  constructor(canvas: HTMLCanvasElement) {
    this.#canvas = canvas;
  }

  /** How to draw from now on. */
  look(view: View): void {
    this.#view = view;
    if (this.#map) this.#levels = levelsOf(this.#map, view.span);
    this.#schedule();
  }

  /** A new map, and what was asked for since the last one. */
  take(map: ExpertMap, routed: Routed): void {
    this.#map = map;
    if (this.#glow.length !== map.tiers.length) this.#glow = new Float32Array(map.tiers.length);
    if (!this.#view) return;
    this.#levels = levelsOf(map, this.#view.span);
    if (this.#view.still) {
      this.#glow.fill(0);
      for (const cell of routed.cells) this.#glow[cell] = STILL_GLOW;
    } else {
      light(this.#glow, routed);
    }
    this.#schedule();
  }

  dispose(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#map = null;
    this.#view = null;
  }

  #schedule(): void {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(this.#draw);
  }

  readonly #draw = (now: number): void => {
    this.#frame = 0;
    const [map, view] = [this.#map, this.#view];
    // The shape of a new model comes with the map first, and with the layout a moment later.
    if (!map || !view || view.layout.rows !== map.rows || view.layout.cols !== map.cols) return;
    const passed = Math.min(now - this.#drawnAt, LONGEST_STEP_MS);
    this.#drawnAt = now;
    const glows = !view.still && decay(this.#glow, passed);
    this.#paint(map, view);
    if (glows) this.#schedule();
  };

  #paint(map: ExpertMap, { layout, palette, ground, boxPx }: View): void {
    const { across, down } = layout;
    const canvas = this.#canvas;
    const [width, height] = boxPx
      ? [boxPx.width, boxPx.height]
      : [widthPx(layout), heightPx(layout)];
    // Setting a size empties the canvas, even if it is the same.
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
    if (this.#small.width !== across || this.#small.height !== down || !this.#image) {
      this.#small.width = across;
      this.#small.height = down;
      this.#image = new ImageData(across, down);
    }
    const small = this.#small.getContext("2d", { willReadFrequently: true });
    const context = canvas.getContext("2d", { alpha: false });
    if (!small || !context) return;
    paint(this.#image.data, layout, map, this.#levels, this.#glow, palette);
    small.putImageData(this.#image, 0, 0);
    context.imageSmoothingEnabled = width < across || height < down;
    context.drawImage(this.#small, 0, 0, width, height);
    if (boxPx || layout.gapPx === 0) return;
    const { cellWidthPx, cellHeightPx, gapPx } = layout;
    context.fillStyle = ground;
    for (let at = 1; at <= across; at++) {
      context.fillRect(at * cellWidthPx - gapPx, 0, gapPx, height);
    }
    for (let at = 1; at <= down; at++) {
      context.fillRect(0, at * cellHeightPx - gapPx, width, gapPx);
    }
  }
}
