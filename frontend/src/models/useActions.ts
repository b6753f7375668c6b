/** What the buttons of the page Models do, and what is asked when the server refuses. */
import { useMemo } from "react";
import { HttpError } from "@/api/http";
import { cancelTask, type LoadWishes, unloadModel, verifyModel, type When } from "@/api/installed";
import { beginLoad, modelsChanged, tasksChanged } from "@/state/installed";
import { notify } from "@/state/ui";
import type { LoadQuestion } from "./LoadDialog";

export interface Actions {
  load(name: string, wishes?: LoadWishes): Promise<void>;
  unload(name: string, when?: When): Promise<void>;
  verify(name: string): Promise<void>;
  cancel(id: string): Promise<void>;
}

export function useActions(ask: (question: LoadQuestion) => void): Actions {
  return useMemo(() => {
    async function attempt(
      work: () => Promise<unknown>,
      onRefused: (code: string | null) => boolean,
    ) {
      try {
        await work();
      } catch (error) {
        const code = error instanceof HttpError ? error.answer.code : null;
        if (!onRefused(code)) notify("problem", error instanceof Error ? error.message : "");
      }
      tasksChanged();
      modelsChanged();
    }
    return {
      load: (name, wishes = {}) => {
        let message = "";
        return attempt(
          () =>
            beginLoad(name, wishes).catch((error: unknown) => {
              message = error instanceof Error ? error.message : "";
              throw error;
            }),
          (code) => {
            if (code === "model_busy") ask({ kind: "busy", name, wishes });
            else if (code === "does_not_fit") ask({ kind: "tight", name, wishes, message });
            else return false;
            return true;
          },
        );
      },
      unload: (name, when = "free") =>
        attempt(
          () => unloadModel(when),
          (code) => {
            if (code !== "model_busy") return false;
            ask({ kind: "busy-unload", name });
            return true;
          },
        ),
      verify: (name) =>
        attempt(
          () => verifyModel(name),
          () => false,
        ),
      cancel: (id) =>
        attempt(
          () => cancelTask(id),
          () => false,
        ),
    };
  }, [ask]);
}
