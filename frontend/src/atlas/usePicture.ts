/** Keeps the picture of the galaxy in an element of the page, as it is to be seen. */
import { type RefObject, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";
import type { Atlas } from "@/core/atlas";
import { aim, approach, type Camera, type View } from "@/core/orbit";
import { setAtlasView } from "@/state/atlas";
import { useDark, useRatio, useSize, useStill } from "@/ui/screen";
import { Frames } from "./frames";
import { readPalette } from "./palette";
import { type News, openPicture, type Picture } from "./picture";

const MOST_RATIO = 2;

interface PictureProps {
  place: RefObject<HTMLElement | null>;
  atlas: Atlas;
  shown: Uint8Array;
  /** Where the camera is, and where it is to be; it is moved in place. */
  view: View;
  target: View;
  camera: Camera;
  /** The camera has moved, for what stands over the picture. */
  onStep: () => void;
  /** The graphics card has taken the picture away, or given it back. */
  onLost: (lost: boolean) => void;
}

interface PictureState {
  /** To be called when `target` has changed. */
  redraw: () => void;
  /** There is a picture. */
  drawn: boolean;
}

/** Throws while rendering if the picture cannot be drawn. */
export function usePicture(props: PictureProps): PictureState {
  const { place, atlas, shown } = props;
  const dark = useDark();
  const ratio = Math.min(MOST_RATIO, useRatio());
  const still = useStill();
  const [element, setElement] = useState<HTMLElement | null>(null);
  const size = useSize(element);
  const [fault, setFault] = useState<Error | null>(null);
  const [drawn, setDrawn] = useState(false);
  const picture = useRef<Picture | null>(null);
  const frames = useRef<Frames | null>(null);
  const latest = useRef({ ...props, size, ratio, still });
  useLayoutEffect(() => {
    latest.current = { ...props, size, ratio, still };
  });

  // Before the orders below, which are for this picture.
  useLayoutEffect(() => {
    const element = place.current;
    if (!element) return;
    setElement(element);
    const opened = openPicture(element, (news) => take(news));
    const made = new Frames((seconds) => {
      const { view, target, camera, size, ratio, still, onStep } = latest.current;
      if (!size?.width || !size.height) return null;
      const there = approach(view, target, still ? Number.POSITIVE_INFINITY : seconds);
      aim(camera, view, size.width, size.height);
      onStep();
      opened.order({ kind: "frame", eye: [camera.x, camera.y, camera.z], ...size, ratio });
      return there;
    });
    function take(news: News): void {
      if (news.kind === "drawn") {
        made.drawn();
        setDrawn(true);
      } else if (news.kind === "none") setAtlasView({ drawable: false });
      else if (news.kind === "failed") setFault(new Error(news.message));
      else latest.current.onLost(news.kind === "lost");
    }
    picture.current = opened;
    frames.current = made;
    return () => {
      made.end();
      opened.end();
    };
  }, [place]);

  useLayoutEffect(() => {
    const { topics, count, top, ring, specialist, positions } = atlas;
    const points = { topics, count, top, ring, specialist, positions };
    picture.current?.order({ kind: "points", points });
  }, [atlas]);

  useLayoutEffect(() => {
    picture.current?.order({ kind: "look", shown, palette: readPalette(), dark });
  }, [shown, dark]);

  // biome-ignore lint/correctness/useExhaustiveDependencies: the step reads them
  useEffect(() => frames.current?.wish(), [size, ratio, still, shown]);

  const redraw = useCallback(() => frames.current?.wish(), []);
  if (fault) throw fault;
  return { redraw, drawn };
}
