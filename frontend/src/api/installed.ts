/** The installed models of our own server, and what is done with them. Contract: docs/dashboard.md. */
import { jsonBody, own } from "./http";

export interface InstalledModel {
  name: string;
  folder: string;
  size_bytes: number;
  family: string | null;
  kind: string | null;
  context_length: number | null;
  quantization: string | null;
  /** All of them; `draft_experts` are those in the draft (MTP) layer. */
  experts: number;
  draft_experts: number;
  loaded: boolean;
  problem: string | null;
}

export interface Installed {
  models: InstalledModel[];
  folder: string;
  free_bytes: number | null;
}

export interface Fit {
  fits: boolean;
  resident: boolean;
  budget_bytes: number;
  tiers: { vram_bytes: number; ram_bytes: number; disk_bytes: number };
  /** All of them; `draft_experts` are those in the draft (MTP) layer. */
  experts: number;
  draft_experts: number;
  experts_in_ram: number;
  context: number;
  tokens_per_second: { low: number; high: number } | null;
  warnings: string[];
}

export interface Finding {
  level: string;
  kind: string;
  what: string;
  where: string | null;
  fix: string | null;
}

export interface Task {
  id: string;
  kind: "verify" | "load" | "unload";
  name: string;
  state: "running" | "done" | "failed" | "cancelled";
  /** 0 while nobody knows how far it is. */
  fraction: number;
  phase: "" | "waiting" | "closing" | "opening" | "preparing" | "restoring";
  running_seconds: number;
  message: string;
  findings: Finding[];
}

/** What to do with answers that are being given: refuse, wait for them, or end them. */
export type When = "free" | "idle" | "now";

export interface LoadWishes {
  /** Tokens; 0: what fits. Left out: as the server was started. */
  ctx?: number;
  kv_slots?: number;
  force?: boolean;
  when?: When;
}

export interface Deletion {
  confirm: string;
  folder: string;
  bytes: number;
  files: number;
}

const of = (name: string, action: string) => `/api/models/${encodeURIComponent(name)}/${action}`;

export const listInstalled = (signal?: AbortSignal) =>
  own<Installed>("/api/models", signal ? { signal } : {});

export const fitOf = (name: string, signal?: AbortSignal) =>
  own<Fit>(of(name, "fit"), signal ? { signal } : {});

export const loadModel = (name: string, wishes: LoadWishes) =>
  own<{ task: Task }>(of(name, "load"), jsonBody("POST", wishes));

export const unloadModel = (when: When) =>
  own<{ task: Task }>("/api/models/unload", jsonBody("POST", { when }));

export const verifyModel = (name: string) =>
  own<{ task: Task }>(of(name, "verify"), jsonBody("POST", {}));

export const proposeDelete = (name: string) =>
  own<Deletion>(of(name, "delete"), jsonBody("POST", {}));

export const deleteModel = (name: string, confirm: string) =>
  own<{ freed_bytes: number }>(of(name, "delete"), jsonBody("POST", { confirm }));

export const listTasks = (signal?: AbortSignal) =>
  own<{ tasks: Task[] }>("/api/tasks", signal ? { signal } : {});

export const cancelTask = (id: string) =>
  own<void>(`/api/tasks/${encodeURIComponent(id)}`, { method: "DELETE" });
