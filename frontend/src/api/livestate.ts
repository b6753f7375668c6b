/** The state that our server reports over the live connection. Contract: docs/dashboard.md. */

export interface Breakdown {
  total_ms: number;
  disk_ms: number;
  experts_ms: number;
  attention_ms: number;
  head_ms: number;
  other_ms: number;
}

/** Where experts were when they were asked for. */
export interface Found {
  vram: number;
  resident: number;
  warm: number;
  cache: number;
  guess: number;
  disk: number;
}

export interface LiveRequest {
  id: string;
  phase: "waiting" | "prefill" | "decode";
  prompt_tokens: number;
  prompt_tokens_done: number;
  cached_tokens: number;
  generated_tokens: number;
  max_tokens: number;
  running_seconds: number;
  queue_wait_ms: number;
  eta_seconds: number | null;
  prompt_fraction: number;
  layer: number;
  layers: number;
  bytes_read: number;
  bytes_left: number;
  slot: number | null;
  tokens_per_second: number | null;
}

export interface LiveTurn {
  id: string;
  ended_at_ms: number;
  outcome: string;
  prompt_tokens: number;
  cached_tokens: number;
  completion_tokens: number;
  ttft_ms: number | null;
  prefill: Breakdown;
  decode: Breakdown;
}

export interface Gpu {
  index: number;
  name: string;
  memory_total_bytes: number | null;
  memory_used_bytes: number | null;
  load: number | null;
  experts: number;
}

export interface Tier {
  name: "vram" | "ram" | "disk";
  experts: number;
  bytes: number;
  note: string;
}

export interface LiveState {
  server: { version: string; instance: string; started_at_ms: number; url: string };
  model: {
    id: string;
    family: string;
    context_length: number | null;
    max_output_tokens: number | null;
    temperature: number | null;
    top_p: number | null;
    chat: boolean;
  } | null;
  engine: {
    state: "loading" | "ready" | "restarting" | "failed" | "stopped" | "unloaded";
    restarts: number;
    last_failure: string | null;
    rss_bytes: number | null;
    /** Of the weights that stay in memory; null unless a model is being opened. */
    loading: { bytes_read: number; bytes_total: number } | null;
    isa: string;
    precision: string;
    threads: number;
    memory: Record<string, number | string> | null;
  };
  scheduler: {
    active: number;
    queued: number;
    completed: number;
    rejected: number;
    timed_out: number;
    cancelled: number;
    failed: number;
    parallel: number;
    kv_slots: number;
    max_queue: number;
  };
  requests: LiveRequest[];
  speed: {
    decode_tokens_per_second: number | null;
    prefill_tokens_per_second: number | null;
    disk_bytes_per_second: number;
    decode_average: number | null;
    prefill_average: number | null;
  };
  turn: LiveTurn | null;
  tiers: { experts: number; draft_experts: number; tiers: Tier[] };
  lookups: { prefill: Found; decode: Found };
  disk: {
    bytes_per_second: number;
    wait_share: number | null;
    bytes_read: number;
    places: { folder: string; bytes_per_second: number; failed: boolean; bytes_read: number }[];
  };
  hardware: {
    cpu: {
      name: string;
      architecture: string;
      cores: number;
      threads: number;
      usable: number;
      load: number | null;
    };
    ram: { total_bytes: number | null; available_bytes: number | null; ours_bytes: number };
    gpus: Gpu[];
    gpu_problem: string;
    note: string;
  };
  bottleneck: { code: string; values: Record<string, number>; text: string };
  experts: { rows: number; cols: number; layers: number[]; seq: number; turn: number };
  chats: { seq: number };
}

/** One second of the last minutes. */
export interface Point {
  at_ms: number;
  decode_tokens_per_second: number;
  prefill_tokens_per_second: number;
  disk_bytes_per_second: number;
}
