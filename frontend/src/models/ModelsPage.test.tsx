import { QueryClientProvider } from "@tanstack/react-query";
import { render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { Tooltip } from "radix-ui";
import { MemoryRouter } from "react-router";
import { beforeEach, expect, test, vi } from "vitest";
import { startShell } from "@/desktop/shell";
import { tasksChanged } from "@/state/installed";
import { queryClient } from "@/state/queries";
import { useSession } from "@/state/session";
import ModelsPage from "./ModelsPage";

const plain = {
  folder: "/m/x",
  size_bytes: 4_000_000_000,
  family: "llama",
  kind: "packed",
  context_length: 8192,
  quantization: "int4 g64",
  experts: 0,
  draft_experts: 0,
  loaded: false,
  problem: null,
};
const task = {
  id: "t1",
  kind: "load",
  name: "big",
  state: "running",
  fraction: 0.4,
  phase: "opening",
  running_seconds: 75.4,
  message: "",
  findings: [],
};
const fit = {
  fits: true,
  resident: true,
  budget_bytes: 8_000_000_000,
  tiers: { vram_bytes: 0, ram_bytes: 4_100_000_000, disk_bytes: 4_000_000_000 },
  experts: 48,
  draft_experts: 16,
  experts_in_ram: 48,
  context: 8192,
  tokens_per_second: { low: 10, high: 20 },
  warnings: [],
};

let asked: [string, unknown][] = [];
let reads: string[] = [];
let answers: Record<string, [number, unknown]> = {};

beforeEach(() => {
  asked = [];
  reads = [];
  const models = [
    { ...plain, name: "big", folder: "/m/big", experts: 48, draft_experts: 16 },
    { ...plain, name: "bad", folder: "/m/bad", problem: "config.json is cut short." },
    { ...plain, name: "small", folder: "/m/small", experts: 32, loaded: true },
  ];
  answers = {
    "GET /api/models": [200, { models, folder: "/m", free_bytes: 5_000_000_000 }],
    "GET /api/tasks": [200, { tasks: [] }],
    "GET /api/models/big/fit": [200, fit],
    "GET /api/models/small/fit": [200, { ...fit, fits: false, tokens_per_second: null }],
  };
  vi.stubGlobal("fetch", async (path: string, init: RequestInit = {}) => {
    const method = init.method ?? "GET";
    if (method === "GET") reads.push(path);
    else asked.push([`${method} ${path}`, JSON.parse(String(init.body ?? "null"))]);
    const [status, body] = answers[`${method} ${path}`] ?? [404, { error: { message: path } }];
    return new Response(status === 204 ? null : JSON.stringify(body), { status });
  });
  useSession.setState({
    session: { login_required: false, logged_in: true, version: "1", instance: "i" },
  });
  queryClient.clear();
  render(
    <QueryClientProvider client={queryClient}>
      <Tooltip.Provider>
        <MemoryRouter>
          <ModelsPage />
        </MemoryRouter>
      </Tooltip.Provider>
    </QueryClientProvider>,
  );
});

const refusal = (code: string): [number, unknown] => [409, { error: { message: "No.", code } }];
const card = (name: string) => screen.findByRole("listitem", { name });

async function press(name: string, where?: HTMLElement): Promise<void> {
  const within_ = where ? within(where) : screen;
  await userEvent.click(await within_.findByRole("button", { name }));
}

test("the loaded one comes first, a broken one last, each with what can be done", async () => {
  await card("small");
  const names = screen.getAllByRole("listitem").map((item) => item.getAttribute("aria-label"));
  expect(names.filter(Boolean)).toEqual(["small", "big", "bad"]);
  expect(within(await card("big")).getByText(/4 GB · llama · int4 g64/)).toBeVisible();
  expect(await within(await card("big")).findByText("fits in memory")).toBeVisible();
  expect(await within(await card("big")).findByText(/10\.0 to 20\.0 tokens\/s/)).toBeVisible();
  expect(await within(await card("small")).findByText("does not fit")).toBeVisible();
  expect(within(await card("bad")).getByText(/cut short/)).toBeVisible();
  expect(within(await card("bad")).getByRole("button", { name: "Load" })).toBeDisabled();
  expect(within(await card("small")).getByRole("button", { name: "Delete" })).toBeDisabled();
});

test("experts are counted alike, with those of the draft layer", async () => {
  const big = await card("big");
  expect(within(big).getByText(/ · 48 experts \(16 in the draft layer\) · /)).toBeVisible();
  expect(await within(big).findByText("48 of 48 experts (16 in the draft layer)")).toBeVisible();
  expect(within(await card("small")).getByText(/ · 32 experts · /)).toBeVisible();
});

test("loading shows how far it is, and can be cancelled", async () => {
  answers["POST /api/models/big/load"] = [202, { task }];
  answers["DELETE /api/tasks/t1"] = [204, null];
  const big = await card("big");
  answers["GET /api/tasks"] = [200, { tasks: [task] }];
  await press("Load", big);
  expect(asked[0]).toEqual(["POST /api/models/big/load", {}]);
  expect(await within(big).findByText("40 %")).toBeVisible();
  expect(within(big).getByRole("progressbar", { name: "Loading" })).toBeVisible();
  await press("Cancel", big);
  expect(asked[1]?.[0]).toBe("DELETE /api/tasks/t1");
});

test("the app's window is told of a load that was begun here, and of no other", async () => {
  sessionStorage.setItem("colibri.shell", "1");
  startShell();
  const said = () => window.colibriShell?.take();
  try {
    const big = await card("big");
    answers["POST /api/models/big/load"] = refusal("task_running");
    await press("Load", big);
    await waitFor(() => expect(asked).toHaveLength(1));
    expect(said()).toEqual([]);
    answers["POST /api/models/big/load"] = [202, { task: { ...task, id: "t9" } }];
    await press("Load", big);
    await waitFor(() => expect(said()).toEqual([{ id: 0, name: "loading", args: { task: "t9" } }]));
  } finally {
    delete window.colibriShell;
    sessionStorage.clear();
  }
});

test("what is not known has no number: the bar moves, and the time goes on", async () => {
  const big = await card("big");
  answers["POST /api/models/big/load"] = [202, { task }];
  answers["GET /api/tasks"] = [200, { tasks: [{ ...task, fraction: 0, phase: "preparing" }] }];
  await press("Load", big);
  const bar = await within(big).findByRole("progressbar", { name: "Getting it ready" });
  expect(bar).not.toHaveAttribute("value");
  expect(within(big).getByText("1 min 15 s")).toBeVisible();
  expect(within(big).queryByText(/%/)).toBeNull();
});

test("running answers are waited for or ended only when the user says so", async () => {
  answers["POST /api/models/big/load"] = refusal("model_busy");
  await press("Load", await card("big"));
  const dialog = await screen.findByRole("dialog", { name: "Answers are being given" });
  answers["POST /api/models/big/load"] = [202, { task }];
  await press("Wait for them", dialog);
  await waitFor(() => expect(asked.at(-1)?.[1]).toEqual({ when: "idle" }));
  answers["POST /api/models/unload"] = refusal("model_busy");
  await press("Unload", await card("small"));
  await press("End them now", await screen.findByRole("dialog"));
  await waitFor(() => expect(asked.at(-1)).toEqual(["POST /api/models/unload", { when: "now" }]));
});

test("what does not fit is loaded by force after a question only", async () => {
  answers["POST /api/models/big/load"] = refusal("does_not_fit");
  await press("Load", await card("big"));
  await press("Load anyway", await screen.findByRole("dialog", { name: "big does not fit" }));
  await waitFor(() => expect(asked.at(-1)?.[1]).toEqual({ force: true }));
});

test("options go along: an empty context is as much as fits", async () => {
  await press("Load with options", await card("big"));
  const dialog = await screen.findByRole("dialog", { name: "Load big" });
  await userEvent.clear(within(dialog).getByLabelText("Context slots"));
  await userEvent.type(within(dialog).getByLabelText("Context slots"), "4");
  await press("Load", dialog);
  await waitFor(() => expect(asked.at(-1)?.[1]).toEqual({ ctx: 0, kv_slots: 4 }));
});

test("deleting tells folder and size, sends the token, and asks no more about it", async () => {
  answers["POST /api/models/big/delete"] = [
    200,
    { confirm: "tok", folder: "/m/big", bytes: 4_000_000_000, files: 3 },
  ];
  await press("Delete", await card("big"));
  const dialog = await screen.findByRole("dialog", { name: "Delete big?" });
  expect(await within(dialog).findByText("3 files (4 GB) are deleted for good:")).toBeVisible();
  expect(within(dialog).getByText("/m/big")).toBeVisible();
  answers["POST /api/models/big/delete"] = [200, { deleted: true, freed_bytes: 4_000_000_000 }];
  answers["GET /api/models"] = [200, { models: [], folder: "/m", free_bytes: null }];
  reads = [];
  await press("Delete for good", dialog);
  await waitFor(() => expect(asked.at(-1)?.[1]).toEqual({ confirm: "tok" }));
  await screen.findByText("No model is installed");
  expect(reads).toContain("/api/models");
  expect(reads).not.toContain("/api/models/big/fit");
});

test("a verification lists what it has found", async () => {
  const finding = {
    level: "error",
    kind: "short",
    what: "It is cut short.",
    where: "out-3",
    fix: "Fetch it.",
  };
  const done = { ...task, kind: "verify", state: "done", phase: "", findings: [finding] };
  answers["GET /api/tasks"] = [200, { tasks: [done] }];
  const big = await card("big");
  tasksChanged();
  expect(await within(big).findByText("1 error")).toBeVisible();
  expect(within(big).getByText("It is cut short.", { exact: false })).toBeVisible();
});
