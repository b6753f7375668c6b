import { QueryClientProvider } from "@tanstack/react-query";
import { render, screen } from "@testing-library/react";
import { expect, test, vi } from "vitest";
import { queryClient } from "@/state/queries";
import { LogView } from "./LogView";
import { Requests } from "./Requests";

const NOTHING = [/Nothing has been asked yet/, /There is nothing of this level/];

function show(fetch: () => Promise<Response>): void {
  vi.stubGlobal("fetch", fetch);
  queryClient.clear();
  render(
    <QueryClientProvider client={queryClient}>
      <Requests />
      <LogView />
    </QueryClientProvider>,
  );
}

test("nothing is claimed to be empty before it has been read", () => {
  show(() => new Promise(() => {}));
  for (const text of NOTHING) expect(screen.queryByText(text)).toBeNull();
});

test("nothing is claimed to be empty that cannot be read", async () => {
  const body = { error: { message: "the disk is gone", type: "server_error", code: "x" } };
  show(async () => new Response(JSON.stringify(body), { status: 500 }));
  await screen.findByText(/The log is not being read: the disk is gone/);
  for (const text of NOTHING) expect(screen.queryByText(text)).toBeNull();
});

test("what was read and is empty is said to be so", async () => {
  const body = { requests: [], entries: [], next: 0 };
  show(async () => new Response(JSON.stringify(body), { status: 200 }));
  for (const text of NOTHING) await screen.findByText(text);
});
