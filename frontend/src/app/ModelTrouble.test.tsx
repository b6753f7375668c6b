import { fireEvent, render, screen } from "@testing-library/react";
import { MemoryRouter, useLocation } from "react-router";
import { afterEach, expect, test } from "vitest";
import type { LiveState } from "@/api/livestate";
import { startShell } from "@/desktop/shell";
import { useTelemetry } from "@/state/telemetry";
import { ModelTrouble } from "./ModelTrouble";

const Where = () => <p data-testid="where">{useLocation().pathname}</p>;

function show(state: string, reason: string | null, path = "/chat"): void {
  const engine = { state, last_failure: reason };
  useTelemetry.setState({ state: { engine } as unknown as LiveState });
  render(
    <MemoryRouter initialEntries={[path]}>
      <ModelTrouble />
      <Where />
    </MemoryRouter>,
  );
}

afterEach(() => {
  useTelemetry.setState({ state: null });
  delete window.colibriShell;
  sessionStorage.clear();
  history.replaceState(null, "", "/");
});

test.each([
  ["ready", null],
  ["loading", null],
  // A restart that went well leaves its reason behind, and unloading on purpose has none.
  ["ready", "the engine process ended"],
  ["unloaded", null],
])("nothing is said while all is well: %s, %s", (state, reason) => {
  show(state, reason);
  expect(screen.queryByRole("status")).toBeNull();
});

test("a model that cannot be read is told with its reason, and leads to the others", () => {
  show("unloaded", "glm could not be loaded: config.json is no JSON");
  expect(screen.getByRole("status")).toHaveTextContent("config.json is no JSON");
  expect(screen.queryByRole("button", { name: /folder/ })).toBeNull();
  fireEvent.click(screen.getByRole("button", { name: "Choose a model" }));
  expect(screen.getByTestId("where")).toHaveTextContent("/models");
  // There the page says it.
  expect(screen.queryByRole("status")).toBeNull();
});

test("in the app's window another folder can be chosen at once", () => {
  history.replaceState(null, "", "/?shell=1");
  startShell();
  show("failed", "the weights end too early", "/models");
  expect(screen.queryByRole("button", { name: "Choose a model" })).toBeNull();
  fireEvent.click(screen.getByRole("button", { name: /folder/ }));
  expect(window.colibriShell?.take().map(({ name }) => name)).toEqual(["open_model"]);
});
