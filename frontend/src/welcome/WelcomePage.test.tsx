import { QueryClientProvider } from "@tanstack/react-query";
import { render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { MemoryRouter } from "react-router";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { tasksChanged } from "@/state/installed";
import { usePrefs } from "@/state/prefs";
import { queryClient } from "@/state/queries";
import { useTelemetry } from "@/state/telemetry";
import WelcomePage from "./WelcomePage";

const model = {
  folder: "/m/x",
  size_bytes: 400_000_000,
  family: "llama",
  kind: "packed",
  context_length: 8192,
  quantization: "int8",
  experts: 0,
  loaded: false,
  problem: null,
};
const fit = {
  fits: true,
  resident: true,
  budget_bytes: 8_000_000_000,
  tiers: { vram_bytes: 0, ram_bytes: 400_000_000, disk_bytes: 400_000_000 },
  experts: 0,
  experts_in_ram: 0,
  context: 8192,
  tokens_per_second: { low: 10, high: 20 },
  warnings: [],
};
const task = { id: "t1", kind: "load", name: "small", state: "running", message: "" };

let asked: string[];
let answers: Record<string, [number, unknown]>;

beforeEach(() => {
  asked = [];
  answers = {
    "GET /api/models": [
      200,
      {
        models: [
          { ...model, name: "huge", size_bytes: 900_000_000_000 },
          { ...model, name: "broken", problem: "config.json is cut short." },
          { ...model, name: "small" },
        ],
        folder: "/m",
        free_bytes: null,
      },
    ],
    "GET /api/tasks": [200, { tasks: [] }],
    "GET /api/models/small/fit": [200, fit],
    "GET /api/models/huge/fit": [200, { ...fit, fits: false }],
  };
  vi.stubGlobal("fetch", async (path: string, init: RequestInit = {}) => {
    const name = `${init.method ?? "GET"} ${path}`;
    asked.push(name);
    const [status, body] = answers[name] ?? [404, { error: { message: path } }];
    return new Response(JSON.stringify(body), { status });
  });
  queryClient.clear();
  render(
    <QueryClientProvider client={queryClient}>
      <MemoryRouter>
        <WelcomePage />
      </MemoryRouter>
    </QueryClientProvider>,
  );
});

afterEach(() => {
  queryClient.clear();
  vi.unstubAllGlobals();
  useTelemetry.setState(useTelemetry.getInitialState());
});

const rows = () => screen.findAllByRole("listitem");
const row = async (name: string): Promise<HTMLElement> =>
  (await screen.findByText(name)).closest("li") as HTMLElement;

test("models that can be used are offered, the smaller first, with what to expect of them", async () => {
  const found = await rows();
  expect(found.map((item) => item.querySelector("p")?.textContent)).toEqual(["small", "huge"]);
  expect(await within(await row("small")).findByText("fits in memory")).toBeVisible();
  expect(await row("small")).toHaveTextContent("10.0 to 20.0 tokens per second");
  const huge = await row("huge");
  expect(await within(huge).findByText("does not fit")).toBeVisible();
  // Speed is promised of what fits only.
  expect(huge).not.toHaveTextContent("tokens per second");
  expect(within(huge).getByRole("button", { name: "Use this one" })).toBeDisabled();
  // Who has come here once is not led here again.
  expect(usePrefs.getState().welcomed).toBe(true);
});

test("a chosen model is loaded, and then it is the one that answers", async () => {
  answers["POST /api/models/small/load"] = [202, { task }];
  const use = within(await row("small")).getByRole("button", { name: "Use this one" });
  answers["GET /api/tasks"] = [200, { tasks: [task] }];
  await userEvent.click(use);
  expect(asked).toContain("POST /api/models/small/load");
  const loading = await within(await row("small")).findByRole("button", { name: "Loading…" });
  expect(loading).toBeDisabled();
  answers["GET /api/models"] = [
    200,
    { models: [{ ...model, name: "small", loaded: true }], folder: "/m", free_bytes: null },
  ];
  answers["GET /api/tasks"] = [200, { tasks: [{ ...task, state: "done" }] }];
  tasksChanged();
  expect(await within(await row("small")).findByText("Ready")).toBeVisible();
});

test("a refusal, and a load that fails, say why", async () => {
  answers["POST /api/models/small/load"] = [409, { error: { message: "It is busy." } }];
  await userEvent.click(within(await row("small")).getByRole("button", { name: "Use this one" }));
  expect(await screen.findByRole("alert")).toHaveTextContent("It is busy.");
  answers["GET /api/tasks"] = [
    200,
    { tasks: [{ ...task, state: "failed", message: "Out of memory." }] },
  ];
  answers["POST /api/models/small/load"] = [202, { task }];
  await userEvent.click(within(await row("small")).getByRole("button", { name: "Use this one" }));
  await waitFor(() => expect(screen.getByRole("alert")).toHaveTextContent("Out of memory."));
});

test("without a model it says where one goes; hello waits for one", async () => {
  await rows();
  answers["GET /api/models"] = [200, { models: [], folder: "/my models", free_bytes: null }];
  await queryClient.invalidateQueries();
  expect(await screen.findByText(/\/my models/)).toBeVisible();
  expect(screen.getByRole("button", { name: "Say hello" })).toBeDisabled();
  expect(screen.getByRole("status")).toHaveTextContent("A model has to be loaded first.");
});
