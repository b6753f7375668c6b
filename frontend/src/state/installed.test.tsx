/** How a model fits is measured by the server for a second: it is asked for once per change. */
import { QueryClientProvider } from "@tanstack/react-query";
import { renderHook, waitFor } from "@testing-library/react";
import type { ReactNode } from "react";
import { beforeEach, expect, test, vi } from "vitest";
import type { InstalledModel } from "@/api/installed";
import { modelsChanged, useFit } from "./installed";
import { queryClient } from "./queries";

const model = { name: "cut", size_bytes: 5 } as InstalledModel;
const wrapper = ({ children }: { children: ReactNode }) => (
  <QueryClientProvider client={queryClient}>{children}</QueryClientProvider>
);

let asked: number;
let answer: [number, unknown];

beforeEach(() => {
  queryClient.clear();
  asked = 0;
  answer = [409, { error: { message: "out-1 is cut short.", code: "model_invalid" } }];
  vi.stubGlobal("fetch", async () => {
    asked += 1;
    return Response.json(answer[1], { status: answer[0] });
  });
});

/** Looks at the page, as long as it takes to know; what it was told. */
async function look(given = model): Promise<string | undefined> {
  const { result, rerender, unmount } = renderHook((wanted: boolean) => useFit(given, wanted), {
    initialProps: true,
    wrapper,
  });
  await waitFor(() => expect(result.current.data ?? result.current.error).toBeTruthy());
  // Another model is loaded meanwhile.
  rerender(false);
  rerender(true);
  await waitFor(() => expect(result.current.isFetching).toBe(false));
  const told = result.current.error?.message;
  unmount();
  return told;
}

test("a refusal of a damaged model is kept, and asked for again once something has changed", async () => {
  for (let visit = 0; visit < 3; visit++) expect(await look()).toBe("out-1 is cut short.");
  expect(asked).toBe(1);
  modelsChanged();
  for (let visit = 0; visit < 2; visit++) expect(await look()).toBe("out-1 is cut short.");
  expect(asked).toBe(2);
  answer = [200, { fits: true }];
  expect(await look({ ...model, size_bytes: 6 })).toBe(undefined);
  expect(asked).toBe(3);
});

test("a server that does not answer for the moment is asked again at the next look", async () => {
  answer = [404, { error: { message: "gone" } }];
  expect(await look()).toBe("gone");
  answer = [200, { fits: true }];
  expect(await look()).toBe(undefined);
  expect(asked).toBe(3);
});
