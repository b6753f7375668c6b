/** What our own server tells about itself: who may reach it, its last requests, its log. */
import { own } from "./http";

export interface ServerInfo {
  url: string | null;
  host: string;
  this_machine_only: boolean;
  key_set: boolean;
  allowed_hosts: string[];
  cors_origins: string[];
  local_origins: string[];
  strict_model: boolean;
  config_file: string;
}

/** A request to a generating route; numbers are null while they are not known. */
export interface SeenRequest {
  id: string;
  route: string;
  method: string;
  at_ms: number;
  stream: boolean;
  client: string;
  user_agent: string;
  model: string | null;
  status: number | null;
  outcome: string;
  phase: "waiting" | "prefill" | "decode" | null;
  total_ms: number | null;
  prompt_tokens: number | null;
  cached_tokens: number | null;
  completion_tokens: number | null;
  max_tokens: number | null;
  temperature: number | null;
  slot: number | null;
  queue_wait_ms: number | null;
  ttft_ms: number | null;
  prefill_ms: number | null;
  decode_ms: number | null;
}

export interface LogEntry {
  seq: number;
  at_ms: number;
  level: "debug" | "info" | "warning" | "error";
  logger: string;
  message: string;
  request_id: string;
}

export const serverInfo = (signal?: AbortSignal) =>
  own<ServerInfo>("/api/server", signal ? { signal } : {});

export const seenRequests = (signal?: AbortSignal) =>
  own<{ requests: SeenRequest[] }>("/api/requests?limit=100", signal ? { signal } : {});

export const logAfter = (after: number, signal?: AbortSignal) =>
  own<{ entries: LogEntry[]; next: number }>(
    `/api/logs?after=${after}&limit=2000`,
    signal ? { signal } : {},
  );
