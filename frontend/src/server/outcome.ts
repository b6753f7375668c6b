/** How a request ended, or what it does, in words. */
import type { TFunction } from "i18next";
import type { SeenRequest } from "@/api/server";

const KNOWN = [
  "stop",
  "length",
  "tool_calls",
  "cancelled",
  "queue_full",
  "queue_timeout",
  "context_length_exceeded",
  "no_model_loaded",
  "model_changed",
  "engine_lost",
] as const;

/** Codes of errors that have no words of their own stand as they are. */
export function outcomeWords({ outcome, phase }: SeenRequest, t: TFunction): string {
  if (outcome === "running") return t(`server.phase.${phase ?? "waiting"}`);
  const known = KNOWN.find((code) => code === outcome);
  return known ? t(`server.outcome.${known}`) : outcome;
}

export function tone({ outcome, status }: SeenRequest): "good" | "busy" | "bad" | "plain" {
  if (outcome === "running") return "busy";
  if (status !== null && status >= 400) return "bad";
  if (outcome === "stop" || outcome === "tool_calls" || outcome === "length") return "good";
  return outcome === "cancelled" ? "plain" : "bad";
}
