import { QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { AtlasReply } from "@/api/atlas.worker";
import { readAtlas } from "@/core/atlas";
import { keys, queryClient } from "@/state/queries";
import { CellDetails } from "./CellDetails";

const MAP = {
  rows: 2,
  cols: 3,
  seq: 1,
  turn: 1,
  tiers: Uint8Array.from([0, 1, 2, 3, 0, 1]),
  heat: Uint8Array.from([0, 255, 10, 0, 0, 0]),
  hits: Uint16Array.from([0, 1200, 0, 0, 0, 0]),
};
const ATLAS = readAtlas(
  {
    categories: ["law", "birds"],
    layer: [3, 3],
    expert: [0, 1],
    top: [0, 1],
    specialist: [false, true],
    entropy: [1, 0.33],
    affinity: [500, 500, 60, 940],
  },
  '"one"',
);

/** In place of the worker that fetches and reads; what it was asked for. */
let answer: AtlasReply;
let asked: unknown[];

class Reader {
  onmessage: ((event: { data: AtlasReply }) => void) | null = null;
  terminate() {}
  postMessage(known: unknown) {
    asked.push(known);
    queueMicrotask(() => this.onmessage?.({ data: answer }));
  }
}

const refused = (status: number, code: string, message = "m"): AtlasReply => ({
  kind: "refused",
  answer: { status, code, message, requestId: null, retryAfterSeconds: null },
});

beforeEach(() => {
  asked = [];
  queryClient.clear();
  vi.stubGlobal("Worker", Reader);
});

afterEach(() => {
  vi.unstubAllGlobals();
  queryClient.clear();
});

function show(marked: number | null, missing: { layer: string; expert: string } | null = null) {
  render(
    <QueryClientProvider client={queryClient}>
      <CellDetails map={MAP} layers={[3, 5]} marked={marked} missing={missing} />
    </QueryClientProvider>,
  );
}

test("an expert is told with tier, heat, uses and the topics it is for", async () => {
  answer = { kind: "atlas", atlas: ATLAS };
  show(1);
  screen.getByText("Layer 3, expert 1");
  screen.getByText("RAM");
  screen.getByText("100 %");
  screen.getByText("1,200");
  await screen.findByText("94 %");
  expect(screen.getAllByRole("listitem").map((item) => item.textContent)).toEqual([
    "birds94 %",
    "law6 %",
  ]);
  screen.getByText(/A specialist/);
});

test("an expert that the atlas leaves out, and a model without an atlas, are told apart", async () => {
  answer = { kind: "atlas", atlas: ATLAS };
  show(4);
  screen.getByText("Layer 5, expert 1");
  await screen.findByText("It was asked for too seldom to say what for.");
});

test("where there is no atlas the command stands that makes one", async () => {
  answer = refused(404, "atlas_missing");
  show(1);
  screen.getByText("Reading the atlas…");
  await screen.findByText("coli atlas run");
  // Pointing at another one does not ask again.
  show(2);
  expect(asked).toEqual([null]);
});

test("an atlas that cannot be used says why", async () => {
  answer = refused(422, "atlas_damaged", "experts.json: no categories");
  show(1);
  await screen.findByText("experts.json: no categories");
});

test("the atlas is asked for once, and then only whether there is another version", async () => {
  answer = { kind: "atlas", atlas: ATLAS };
  show(1);
  show(0);
  expect(await screen.findAllByText("94 %")).toHaveLength(1);
  expect(asked).toEqual([null]);
  answer = { kind: "same" };
  await queryClient.refetchQueries({ queryKey: keys.atlas("") });
  expect(asked).toEqual([null, '"one"']);
  expect(queryClient.getQueryData(keys.atlas(""))).toBe(ATLAS);
});

test("without a cell there is a hint, or what the address asked for in vain", () => {
  show(null);
  screen.getByText(/Point at a cell/);
  show(null, { layer: "9", expert: "1" });
  screen.getByText("This model has no expert 1 in layer 9.");
});
