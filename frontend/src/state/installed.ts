/** The installed models and the work that is being done on them, as the server tells. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef } from "react";
import { HttpError } from "@/api/http";
import {
  type Fit,
  fitOf,
  type Installed,
  type InstalledModel,
  type LoadWishes,
  listInstalled,
  listTasks,
  loadModel,
  type Task,
} from "@/api/installed";
import { say } from "@/desktop/shell";
import { keys, queryClient } from "./queries";

const BUSY_MS = 500;
const IDLE_MS = 5000;

export function useInstalled() {
  return useQuery({
    queryKey: keys.installed,
    queryFn: ({ signal }) => listInstalled(signal),
    refetchInterval: IDLE_MS * 3,
  });
}

const CONFLICT = 409;

/**
 * How a model fits. The server measures for a second, so it is kept for a while: the refusal of a
 * damaged model too, which as an error would be asked for at every look.
 */
export function useFit({ name, size_bytes }: InstalledModel, wanted: boolean) {
  const { data, error, isFetching } = useQuery({
    queryKey: [...keys.fit(name), size_bytes],
    queryFn: async ({ signal }): Promise<{ fit?: Fit; refusal?: HttpError }> => {
      try {
        return { fit: await fitOf(name, signal) };
      } catch (problem) {
        if (problem instanceof HttpError && problem.status === CONFLICT)
          return { refusal: problem };
        throw problem;
      }
    },
    enabled: wanted,
    staleTime: 300_000,
    refetchOnWindowFocus: false,
  });
  return { data: data?.fit, error: data?.refusal ?? error, isFetching };
}

/** The last tasks, latest first; lists are renewed when one of them ends. */
export function useTasks(): Task[] {
  const { data } = useQuery({
    queryKey: keys.tasks,
    queryFn: ({ signal }) => listTasks(signal),
    refetchInterval: ({ state }) =>
      state.data?.tasks.some((task) => task.state === "running") ? BUSY_MS : IDLE_MS,
  });
  const tasks = data?.tasks ?? NONE;
  const running = tasks.filter((task) => task.state === "running").length;
  const before = useRef(running);
  useEffect(() => {
    if (running < before.current) modelsChanged();
    before.current = running;
  }, [running]);
  return tasks;
}

const NONE: Task[] = [];

export function tasksChanged(): void {
  void queryClient.invalidateQueries({ queryKey: keys.tasks });
}

/** Begins to load a model. In the app's window it is then the one that the app starts with. */
export async function beginLoad(name: string, wishes: LoadWishes): Promise<void> {
  const { task } = await loadModel(name, wishes);
  say("loading", { task: task.id });
}

/** Something was loaded, unloaded or deleted. */
export function modelsChanged(): void {
  for (const key of [keys.installed, keys.fits, ["models"]])
    void queryClient.invalidateQueries({ queryKey: key });
}

/** A model is gone: its card goes first, so that nothing asks the server about it again. */
export function modelDeleted(name: string): void {
  queryClient.setQueryData<Installed>(
    keys.installed,
    (data) => data && { ...data, models: data.models.filter((model) => model.name !== name) },
  );
  queryClient.removeQueries({ queryKey: keys.fit(name) });
}
