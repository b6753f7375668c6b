import { QueryClientProvider } from "@tanstack/react-query";
import { render, screen, waitFor } from "@testing-library/react";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { queryClient } from "@/state/queries";
import { Licences } from "./Licences";

beforeEach(() => queryClient.clear());
afterEach(() => vi.unstubAllGlobals());

function shown(type: string, status = 200) {
  const asked = vi.fn(async (_path: string, _init: RequestInit) => {
    return new Response(null, { status, headers: { "Content-Type": type } });
  });
  vi.stubGlobal("fetch", asked);
  render(
    <QueryClientProvider client={queryClient}>
      <Licences />
    </QueryClientProvider>,
  );
  return asked;
}

test("a release leads to the licences of others", async () => {
  const asked = shown("text/plain; charset=utf-8");
  const link = await screen.findByRole("link", { name: "Licences of third parties" });
  expect(link).toHaveAttribute("href", expect.stringMatching(/\/third-party\.txt$/));
  expect(asked.mock.calls[0]?.[1]).toMatchObject({ method: "HEAD" });
});

test.each([
  ["text/html; charset=utf-8", 200],
  ["text/plain", 404],
])("without that text (%s, %d) there is no link", async (type, status) => {
  const asked = shown(type, status);
  await waitFor(() => expect(queryClient.isFetching()).toBe(0));
  expect(asked).toHaveBeenCalled();
  expect(screen.queryByRole("link")).toBeNull();
});
