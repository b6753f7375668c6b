/**
 * The canvas of the galaxy, and who draws on it: a worker, so that starting the graphics card,
 * compiling and drawing never keep the page from answering. Where a browser cannot do that, the page
 * draws by itself.
 *
 * A picture belongs to one element of the page from `openPicture` to `end`; orders may come at once
 * and are kept until there is somebody to draw.
 */
import type { Atlas } from "@/core/atlas";
import type { Colour } from "@/core/galaxy";

/** What of an atlas is drawn. */
export type Points = Pick<Atlas, "topics" | "count" | "top" | "ring" | "specialist" | "positions">;

export type Order =
  | { kind: "points"; points: Points }
  | { kind: "look"; shown: Uint8Array; palette: readonly Colour[]; dark: boolean }
  /** The eye looks at the middle. Width and height in CSS pixels; `ratio` device pixels for one. */
  | {
      kind: "frame";
      eye: readonly [number, number, number];
      width: number;
      height: number;
      ratio: number;
    };

export type News =
  /** The last frame is drawn. */
  | { kind: "drawn" }
  /** The graphics card has taken the picture away, or given it back. */
  | { kind: "lost" }
  | { kind: "back" }
  /** This browser cannot draw in three dimensions. */
  | { kind: "none" }
  | { kind: "failed"; message: string };

/** Who draws, on whatever thread. */
export interface Draughtsman {
  order(order: Order): void;
  end(): void;
}

export interface Picture {
  order(order: Order): void;
  /** Takes the canvas from the page, and gives back what was held for it. */
  end(): void;
}

/** Puts a canvas into `place`. `tell` is called later, never from within. */
export function openPicture(place: HTMLElement, tell: (news: News) => void): Picture {
  // The last of each kind is all that a new draughtsman has to know.
  const orders = new Map<Order["kind"], Order>();
  let draughtsman: Draughtsman | null = null;
  let canvas = addCanvas(place);
  let ended = false;

  const begin = (next: Draughtsman) => {
    draughtsman = next;
    for (const order of orders.values()) next.order(order);
  };

  async function drawHere(): Promise<void> {
    draughtsman?.end();
    draughtsman = null;
    canvas.remove();
    canvas = addCanvas(place);
    try {
      if (!canvas.getContext("webgl2", CONTEXT)) return tell({ kind: "none" });
      const { draw } = await import("./drawing");
      if (!ended) begin(draw(canvas, tell));
    } catch (error) {
      if (!ended) tell({ kind: "failed", message: String(error) });
    }
  }

  if ("transferControlToOffscreen" in canvas) {
    const worker = new Worker(new URL("./drawing.worker.ts", import.meta.url), { type: "module" });
    worker.onmessage = ({ data }: MessageEvent<News>) => {
      if (data.kind === "none" || data.kind === "failed") void drawHere();
      else tell(data);
    };
    // It could not be started, or has broken down.
    worker.onerror = () => void drawHere();
    const offscreen = canvas.transferControlToOffscreen();
    worker.postMessage(offscreen, [offscreen]);
    begin({
      order: (order) => worker.postMessage(order),
      end() {
        worker.onmessage = null;
        worker.onerror = null;
        worker.terminate();
      },
    });
  } else {
    queueMicrotask(() => void (ended || drawHere()));
  }

  return {
    order(order) {
      orders.set(order.kind, order);
      draughtsman?.order(order);
    },
    end() {
      ended = true;
      draughtsman?.end();
      canvas.remove();
    },
  };
}

/** Points need neither depth nor smoothed edges, and the page shines through. */
export const CONTEXT: WebGLContextAttributes = { antialias: false, depth: false, stencil: false };

function addCanvas(place: HTMLElement): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.className = "block size-full";
  canvas.setAttribute("aria-hidden", "true");
  place.append(canvas);
  return canvas;
}
