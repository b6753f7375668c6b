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

/** The log's last lines, as they come; `problem` is what kept the last look from succeeding. */
export function useLog(): { entries: LogEntry[]; problem: string | null } {
  const [log, setLog] = useState<{ entries: LogEntry[]; problem: string | null }>({
    entries: [],
    problem: null,
  });
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
              problem: null,
            }));
          else
            setLog((before) => (before.problem === null ? before : { ...before, problem: null }));
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
