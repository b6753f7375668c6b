import { QueryClientProvider } from "@tanstack/react-query";
import { cleanup, render, screen } from "@testing-library/react";
import { MemoryRouter } from "react-router";
import { afterEach, expect, test, vi } from "vitest";
import { queryClient } from "@/state/queries";
import { Welcome } from "./Welcome";

afterEach(() => {
  delete window.colibriShell;
  queryClient.clear();
  vi.unstubAllGlobals();
});

/** What is shown when the server says this about its model. */
async function welcome(about: object): Promise<string> {
  cleanup();
  queryClient.clear();
  const model = { id: "m", context_length: 2048, about };
  vi.stubGlobal("fetch", async () => Response.json({ data: [model] }));
  render(
    <QueryClientProvider client={queryClient}>
      <MemoryRouter>
        <Welcome />
      </MemoryRouter>
    </QueryClientProvider>,
  );
  await screen.findByText("m · on this server · context 2,048");
  return document.body.textContent ?? "";
}

test("the way to another model is one that there is where the program was started", async () => {
  const starter = { note: "", examples: [], starter: true };
  const source = await welcome({ ...starter, from_source: true });
  expect(source).toContain("make run MODEL=");
  expect(screen.queryByRole("link", { name: "Models" })).toBeNull();

  const installed = await welcome({ ...starter, from_source: false });
  expect(installed).toContain("coli serve --model FOLDER");
  expect(installed).not.toContain("make ");
  expect(screen.getByRole("link", { name: "Models" }).getAttribute("href")).toBe("/models");

  window.colibriShell = { take: () => [], tell: () => {} };
  const app = await welcome({ ...starter, from_source: true });
  expect(app).not.toContain("make ");
  expect(app).not.toContain("coli ");
  expect(screen.getByRole("link", { name: "Models" })).toBeTruthy();

  expect(await welcome({ ...starter, starter: false, from_source: false })).not.toContain("Models");
});
