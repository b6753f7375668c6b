import { afterEach, beforeEach, expect, test, vi } from "vitest";

type Module = typeof import("./shell");

async function fresh(search: string): Promise<Module> {
  vi.resetModules();
  history.replaceState(null, "", `/app/${search}`);
  const shell = await import("./shell");
  shell.startShell();
  return shell;
}

beforeEach(() => {
  sessionStorage.clear();
  delete window.colibriShell;
});
afterEach(() => history.replaceState(null, "", "/"));

test("in a browser there is no window, and nothing is kept for it", async () => {
  const shell = await fresh("");
  expect(shell.inWindow()).toBe(false);
  shell.say("ready");
  expect(await shell.ask("token")).toBeNull();
  expect(await shell.saveInWindow("a", "b")).toBe(false);
});

test("the window is remembered when the address no longer says so", async () => {
  await fresh("?shell=1");
  delete window.colibriShell;
  const shell = await fresh("chat/5");
  expect(shell.inWindow()).toBe(true);
});

test("what is said is taken once, and answers find who asked", async () => {
  const shell = await fresh("?shell=1");
  shell.say("theme", { dark: true });
  const token = shell.ask("token");
  const said = window.colibriShell?.take() ?? [];
  expect(said.map(({ name }) => name)).toEqual(["theme", "token"]);
  expect(window.colibriShell?.take()).toEqual([]);
  window.colibriShell?.tell({ kind: "answer", id: said[1]?.id, value: "t" });
  expect(await token).toBe("t");
});

test("commands and notices wait for the page; nonsense is ignored", async () => {
  const shell = await fresh("?shell=1");
  const command = vi.fn();
  const notice = vi.fn();
  window.colibriShell?.tell({ kind: "command", name: "new_chat" });
  for (const nonsense of [null, 5, "x", {}, { kind: "answer" }, { kind: "notice" }])
    window.colibriShell?.tell(nonsense);
  const end = shell.listen({ command, notice });
  expect(command).toHaveBeenCalledWith("new_chat");
  window.colibriShell?.tell({ kind: "notice", code: "port_taken", values: { port: 5 } });
  expect(notice).toHaveBeenCalledWith({ code: "port_taken", values: { port: 5 } });
  end();
  window.colibriShell?.tell({ kind: "command", name: "attach" });
  expect(command).toHaveBeenCalledTimes(1);
});

test("a save that is cancelled is neither saved nor a problem", async () => {
  const shell = await fresh("?shell=1");
  const saved = shell.saveInWindow("a.md", "text");
  const [asked] = window.colibriShell?.take() ?? [];
  expect(asked?.args).toEqual({ name: "a.md", text: "text" });
  window.colibriShell?.tell({
    kind: "answer",
    id: asked?.id,
    value: { path: null, problem: null },
  });
  expect(await saved).toEqual({ path: null, problem: null });
});
