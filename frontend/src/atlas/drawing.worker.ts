/** Draws the galaxy beside the page. The first message is the canvas, all others are orders. */
import { draw } from "./drawing";
import type { Draughtsman, News, Order } from "./picture";

// A worker's own `postMessage`; the types know that of a window only.
const tell = (news: News): void => (self.postMessage as (news: News) => void)(news);

let draughtsman: Draughtsman | null = null;

self.onmessage = ({ data }: MessageEvent<OffscreenCanvas | Order>) => {
  if (data instanceof OffscreenCanvas) draughtsman = draw(data, tell);
  else draughtsman?.order(data);
};
