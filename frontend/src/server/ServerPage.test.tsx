import { QueryClientProvider } from "@tanstack/react-query";
import { render, screen, waitFor, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { Tooltip } from "radix-ui";
import { MemoryRouter } from "react-router";
import { beforeEach, expect, test, vi } from "vitest";
import { queryClient } from "@/state/queries";
import { useSession } from "@/state/session";
import ServerPage from "./ServerPage";

const info = {
  url: "http://127.0.0.1:8000",
  host: "127.0.0.1",
  this_machine_only: true,
  key_set: true,
  allowed_hosts: ["box.example"],
  cors_origins: [],
  local_origins: [],
  strict_model: false,
  config_file: "/c/config.toml",
};
const seen = {
  id: "req_1",
  route: "/v1/chat/completions",
  method: "POST",
  at_ms: 0,
  stream: true,
  client: "127.0.0.1",
  user_agent: "aider/1.0 more",
  model: "m",
  status: 200,
  outcome: "stop",
  phase: null,
  total_ms: 2500,
  prompt_tokens: 1200,
  cached_tokens: 1000,
  completion_tokens: 41,
  max_tokens: 100,
  temperature: 0.5,
  slot: 0,
  queue_wait_ms: 20,
  ttft_ms: 500,
  prefill_ms: 400,
  decode_ms: 2000,
};
const entry = (seq: number, level: string, message: string) => ({
  seq,
  at_ms: 0,
  level,
  logger: "colibri.api",
  message,
  request_id: "",
});

beforeEach(() => {
  const running = { ...seen, id: "req_2", outcome: "running", phase: "prefill", status: null };
  const answers: Record<string, unknown> = {
    "/api/server": info,
    "/api/requests?limit=100": { requests: [running, seen] },
    "/api/logs?after=0&limit=2000": {
      entries: [entry(1, "info", "all is well"), entry(2, "error", "the disk is full")],
      next: 2,
    },
    "/v1/models": { data: [{ id: "my-model", context_length: 4096 }] },
  };
  vi.stubGlobal("fetch", async (path: string) => {
    const url = path.replace(location.origin, "");
    const body = answers[url] ?? (url.startsWith("/api/logs") ? { entries: [], next: 2 } : {});
    return new Response(JSON.stringify(body), { status: 200 });
  });
  useSession.setState({
    session: { login_required: true, logged_in: true, version: "1", instance: "i" },
  });
  queryClient.clear();
  render(
    <QueryClientProvider client={queryClient}>
      <Tooltip.Provider>
        <MemoryRouter>
          <ServerPage />
        </MemoryRouter>
      </Tooltip.Provider>
    </QueryClientProvider>,
  );
});

test("access is told in words, and settings carry address and model, never a key", async () => {
  expect(await screen.findByText(`${location.origin}/v1`)).toBeVisible();
  expect(screen.getByText("this computer only")).toBeVisible();
  expect(screen.getByText("box.example")).toBeVisible();
  await userEvent.selectOptions(screen.getByRole("combobox", { name: "Program" }), "aider");
  const clients = screen.getByRole("region", { name: "Connect a program" });
  await waitFor(() => expect(clients).toHaveTextContent("aider --model openai/my-model"));
  expect(clients).toHaveTextContent("OPENAI_API_KEY=YOUR_KEY");
});

test("requests are told as they stand, with every figure in a drawer", async () => {
  const rows = await screen.findAllByRole("row");
  expect(within(rows[1]!).getByText("reading the prompt")).toBeVisible();
  expect(within(rows[2]!).getByText("complete")).toBeVisible();
  expect(rows[2]).toHaveTextContent("1,200 · 1,000 · 41");
  await userEvent.click(within(rows[2]!).getByRole("button"));
  const drawer = await screen.findByRole("dialog", { name: "Request" });
  // 200 new tokens in 0.4 s, 40 more after the first in 2 s.
  expect(drawer).toHaveTextContent("500 tokens/s");
  expect(drawer).toHaveTextContent("20.0 tokens/s");
  expect(drawer).toHaveTextContent("aider/1.0 more");
});

test("the log is narrowed by level and words", async () => {
  const log = await screen.findByRole("log");
  expect(await within(log).findByText("all is well")).toBeVisible();
  await userEvent.click(screen.getByRole("radio", { name: "Errors" }));
  expect(within(log).queryByText("all is well")).toBeNull();
  expect(within(log).getByText("the disk is full")).toBeVisible();
  await userEvent.type(screen.getByLabelText("Search the log"), "nothing");
  expect(within(log).getByText("No line has these words.")).toBeVisible();
});
