/**
 * Draws the galaxy on a canvas, on the page's thread or a worker's: three.js with its shaders, behind
 * the orders of `picture.ts`. Nothing here may ask for the page. Loaded on demand, because three.js
 * weighs more than the rest of the page.
 */
import { createRoot, extend, type ReconcilerRoot, type RootState } from "@react-three/fiber";
import { useEffect } from "react";
import { Points, WebGLRenderer, type WebGLRendererParameters } from "three";
import { HALF_ANGLE } from "@/core/orbit";
import { Boundary } from "@/ui/Boundary";
import { Cloud } from "./Cloud";
import { CONTEXT, type Draughtsman, type News, type Order } from "./picture";

// All that is made by name in `Cloud`.
extend({ Points });

type AnyCanvas = HTMLCanvasElement | OffscreenCanvas;

/** `tell` is called later, never from within. */
export function draw(canvas: AnyCanvas, tell: (news: News) => void): Draughtsman {
  const orders: { [Kind in Order["kind"]]?: Extract<Order, { kind: Kind }> } = {};
  let root: ReconcilerRoot<AnyCanvas> | null = null;
  let state: (() => RootState) | null = null;
  let ended = false;

  function show(): void {
    const { points, look } = orders;
    if (!root || !points || !look || look.shown.length !== points.points.count) return;
    const scene = (
      <Boundary fallback={(error) => <Told error={error} tell={tell} />}>
        <Cloud
          points={points.points}
          shown={look.shown}
          palette={look.palette}
          dark={look.dark}
          onDrawn={drawn}
        />
      </Boundary>
    );
    state = root.render(scene).getState;
    aim();
  }

  function drawn(): void {
    // Before it is known from where to look, nothing is to be seen.
    if (orders.frame) tell({ kind: "drawn" });
  }

  function aim(): void {
    const { frame } = orders;
    if (!state || !frame) return;
    const { camera, size, viewport, setSize, setDpr, invalidate } = state();
    if (size.width !== frame.width || size.height !== frame.height)
      setSize(frame.width, frame.height);
    if (viewport.dpr !== frame.ratio) setDpr(frame.ratio);
    camera.position.set(...frame.eye);
    camera.lookAt(0, 0, 0);
    invalidate();
  }

  async function begin(): Promise<void> {
    const context = canvas.getContext("webgl2", CONTEXT);
    if (!context) return tell({ kind: "none" });
    canvas.addEventListener("webglcontextlost", () => ended || tell({ kind: "lost" }));
    canvas.addEventListener("webglcontextrestored", () => {
      tell({ kind: "back" });
      state?.().invalidate();
    });
    const made = createRoot(canvas);
    await made.configure({
      frameloop: "demand",
      dpr: 1,
      size: { width: 1, height: 1, top: 0, left: 0 },
      camera: { fov: (HALF_ANGLE * 360) / Math.PI, near: 0.01, far: 50 },
      gl: (defaults) =>
        new WebGLRenderer({
          ...(defaults as WebGLRendererParameters),
          ...CONTEXT,
          context: context as WebGL2RenderingContext,
        }),
    });
    if (ended) return made.unmount();
    root = made;
    show();
  }

  begin().catch((error: unknown) => tell({ kind: "failed", message: String(error) }));
  return {
    order(order) {
      Object.assign(orders, { [order.kind]: order });
      if (order.kind === "frame") aim();
      else show();
    },
    end() {
      ended = true;
      root?.unmount();
    },
  };
}

function Told({ error, tell }: { error: Error; tell: (news: News) => void }) {
  useEffect(() => tell({ kind: "failed", message: error.message }), [error, tell]);
  return null;
}
