/** What the browser's threads did for a while, from a trace: shares of a core, and the longest tasks. */
import type { Page } from "playwright-core";

interface TraceEvent {
  name: string;
  pid: number;
  tid: number;
  ph: string;
  /** Duration and processor time in it, in microseconds. */
  dur?: number;
  tdur?: number;
  args: { name?: string };
}

export interface Task {
  /** Milliseconds of the processor, which a busy machine does not lengthen, and of the clock. */
  cpu: number;
  wall: number;
}

export interface Traced {
  /** Milliseconds between start and end. */
  wall: number;
  /** Of each kind of thread: all its tasks. `CrRendererMain` runs the page. */
  tasks: Map<string, Task[]>;
}

/** Traces the page's browser until the returned function is called. */
export async function trace(page: Page): Promise<() => Promise<Traced>> {
  const session = await page.context().newCDPSession(page);
  const events: TraceEvent[] = [];
  session.on("Tracing.dataCollected", ({ value }) => {
    events.push(...(value as unknown as TraceEvent[]));
  });
  const complete = new Promise((done) => session.once("Tracing.tracingComplete", done));
  await session.send("Tracing.start", {
    transferMode: "ReportEvents",
    traceConfig: { includedCategories: ["toplevel", "devtools.timeline", "__metadata"] },
  });
  const start = performance.now();
  return async () => {
    const wall = performance.now() - start;
    await session.send("Tracing.end");
    await complete;
    await session.detach();
    const named = events.filter(({ name }) => name === "thread_name");
    const names = new Map(named.map(({ pid, tid, args }) => [`${pid} ${tid}`, args.name ?? ""]));
    const tasks = new Map<string, Task[]>();
    for (const { name, pid, tid, ph, dur, tdur } of events) {
      if (ph !== "X" || !name.endsWith("RunTask")) continue;
      const thread = names.get(`${pid} ${tid}`)?.replace(/[/\d]+$/, "") ?? "";
      const list = tasks.get(thread) ?? [];
      list.push({ cpu: (tdur ?? 0) / 1000, wall: (dur ?? 0) / 1000 });
      tasks.set(thread, list);
    }
    return { wall, tasks };
  };
}
