/** The server itself, as its own page shows it: set-up, requests and log, looked at while watched. */
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState } from "react";
import { type LogEntry, logAfter, seenRequests, serverInfo } from "@/api/server";
import { keys } from "./queries";

const RUNNING_MS = 1000;
const QUIET_MS = 3000;
const LOG_MS = 1000;
const LOG_KEPT = 2000;

export function useServerInfo() {
  return useQuery({ queryKey: keys.server, queryFn: ({ signal }) => serverInfo(signal) });
}

export function useRequests() {
  return useQuery({
    queryKey: keys.requests,
    queryFn: ({ signal }) => seenRequests(signal),
    refetchInterval: ({ state }) =>
      state.data?.requests.some(({ outcome }) => outcome === "running") ? RUNNING_MS : QUIET_MS,
  });
}

interface Log {
  entries: LogEntry[];
  /** Whether the server has ever answered: before, no lines do not mean that there are none. */
  read: boolean;
  /** What kept the last look from succeeding. */
  problem: string | null;
}

/** The log's last lines, as they come. */
export function useLog(): Log {
  const [log, setLog] = useState<Log>({ entries: [], read: false, problem: null });
  useEffect(() => {
    const ended = new AbortController();
    let after = 0;
    let timer: ReturnType<typeof setTimeout> | undefined;

    async function look(): Promise<void> {
      try {
        if (document.visibilityState === "visible") {
          const { entries, next } = await logAfter(after, ended.signal);
          // After a restart of the server its lines are counted anew.
          const restarted = next < after;
          after = restarted ? 0 : next;
          if (entries.length > 0 || restarted)
            setLog((before) => ({
              entries: [...(restarted ? [] : before.entries), ...entries].slice(-LOG_KEPT),
              read: true,
              problem: null,
            }));
          else
            setLog((before) =>
              before.read && before.problem === null
                ? before
                : { ...before, read: true, problem: null },
            );
        }
      } catch (error) {
        if (ended.signal.aborted) return;
        const problem = error instanceof Error ? error.message : String(error);
        setLog((before) => ({ ...before, problem }));
      }
      timer = setTimeout(() => void look(), LOG_MS);
    }

    void look();
    return () => {
      ended.abort();
      clearTimeout(timer);
    };
  }, []);
  return log;
}
