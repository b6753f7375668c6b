import { QueryClientProvider } from "@tanstack/react-query";
import { render, screen, within } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { Tooltip } from "radix-ui";
import type { ReactNode } from "react";
import { MemoryRouter } from "react-router";
import { beforeEach, expect, test } from "vitest";
import { HttpError } from "@/api/http";
import { readAtlas } from "@/core/atlas";
import { madeUp } from "@/core/atlas.made";
import { colourOf } from "@/core/galaxy";
import AtlasPage from "@/pages/AtlasPage";
import { ALL, setAtlasView } from "@/state/atlas";
import { setPrefs } from "@/state/prefs";
import { keys, queryClient } from "@/state/queries";
import { useSession } from "@/state/session";
import { AtlasMissing } from "./AtlasMissing";

const atlas = readAtlas(madeUp(6, 4, 32));

beforeEach(() => {
  setAtlasView({ filter: ALL, table: false, selected: -1 });
  setPrefs({ base: "" });
  useSession.setState({
    session: { login_required: false, logged_in: true, version: "0", instance: "i" },
  });
  queryClient.setQueryData(keys.atlas(""), atlas);
  return () => queryClient.clear();
});

function renderPart(part: ReactNode) {
  render(
    <QueryClientProvider client={queryClient}>
      <Tooltip.Provider>
        <MemoryRouter>{part}</MemoryRouter>
      </Tooltip.Provider>
    </QueryClientProvider>,
  );
}

const show = () => renderPart(<AtlasPage />);

// jsdom has no WebGL: what is shown is the table.
test("without WebGL the experts stand in a table, filtered by what is typed", async () => {
  show();
  expect(screen.getByText(/cannot draw in three dimensions/)).toBeInTheDocument();
  expect(screen.getByRole("status")).toHaveTextContent("128 of 128 experts");
  await userEvent.type(screen.getByRole("searchbox"), "4:31");
  expect(await screen.findByText("1 of 128 experts")).toBeInTheDocument();
  const row = screen.getByRole("rowheader", { name: "Layer 4 · Expert 31" }).closest("tr");
  const link = within(row as HTMLElement).getByRole("link");
  expect(link).toHaveAttribute("href", "/brain?layer=4&expert=31");
});

test("sorting turns round with the second press", async () => {
  show();
  const sort = screen.getByRole("button", { name: "Entropy" });
  await userEvent.click(sort);
  const header = screen.getByRole("columnheader", { name: "Entropy" });
  expect(header).toHaveAttribute("aria-sort", "ascending");
  await userEvent.click(sort);
  expect(header).toHaveAttribute("aria-sort", "descending");
});

test("a page that talks to another server says that there is no atlas", () => {
  setPrefs({ base: "http://other/v1" });
  show();
  expect(screen.getByRole("heading", { name: "No atlas here" })).toBeInTheDocument();
});

const refusal = (status: number, code: string, message = "m", commands?: string[]) =>
  new HttpError({
    status,
    code,
    message,
    requestId: null,
    retryAfterSeconds: null,
    ...(commands && { commands }),
  });

const missing = (error: Error) =>
  renderPart(<AtlasMissing error={error} looking={false} onRetry={() => {}} />);

test("the commands are those that the server names, for its model", () => {
  missing(refusal(404, "atlas_missing", "m", ["coli atlas run big", "coli atlas analyze big"]));
  expect(screen.getByText("coli atlas run big")).toBeInTheDocument();
  expect(screen.getByRole("button", { name: "Copy: coli atlas analyze big" })).toBeInTheDocument();
  expect(screen.getByRole("button", { name: "Look again" })).toBeEnabled();
});

test("a dense model needs no commands", () => {
  missing(refusal(404, "atlas_no_experts"));
  expect(screen.getByRole("heading", { name: "This model has no experts" })).toBeInTheDocument();
  expect(screen.queryByRole("button")).toBeNull();
});

test("what is wrong with a file, or with the server, is told in its words", () => {
  missing(refusal(422, "atlas_damaged", "experts.json: no categories"));
  expect(screen.getByText("experts.json: no categories")).toBeInTheDocument();
  expect(screen.getByRole("heading", { name: "The atlas cannot be used" })).toBeInTheDocument();
});

test.each([1, 2, 11, 12, 13, 25, 64])(
  "of %i topics no two neighbours have one colour",
  (topics) => {
    const ring = Array.from({ length: topics }, (_, place) => colourOf(place, topics));
    for (const [place, colour] of ring.entries()) {
      if (topics > 1) expect(colour).not.toBe(ring[(place + 1) % topics]);
    }
  },
);
