/** The servers that the page is tested against: our own with a real model, and a scripted one. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const ROOT = join(import.meta.dirname, "..", "..");
const BIN = join(ROOT, ".venv", "bin");

export interface RunningServer {
  url: string;
  stop(): Promise<void>;
}

/** `coli serve` with SmolLM2, or another model, on a free port and with folders of its own. */
export async function realServer(
  env: Record<string, string> = {},
  model = "smollm2-135m-instruct",
): Promise<RunningServer> {
  const home = await mkdtemp(join(tmpdir(), "colibri-e2e-home-"));
  const data = process.env["XDG_DATA_HOME"] ?? join(homedir(), ".local", "share");
  const models = process.env["COLIBRI_MODELS_DIR"] ?? join(data, "colibri", "models");
  const child = spawn(
    join(BIN, "coli"),
    ["serve", "--model", model, "--port", "0", "--kv-slots", "2"],
    {
      env: { ...process.env, COLIBRI_HOME: home, COLIBRI_MODELS_DIR: models, ...env },
      stdio: ["pipe", "pipe", process.env["COLIBRI_E2E_LOG"] ? "inherit" : "ignore"],
    },
  );
  return started(child, home);
}

export interface ExpertServer extends RunningServer {
  /** Where the model lies. */
  folder: string;
}

/** The real engine with a model that has experts: small, random weights, noise for text. */
export async function expertServer(): Promise<ExpertServer> {
  const place = await mkdtemp(join(tmpdir(), "colibri-e2e-model-"));
  const folder = join(place, "small-moe");
  const made = spawn(
    join(BIN, "coli"),
    "bench make-model --layers 5 --hidden 64 --experts 32 --top-k 4 --expert-ffn 32 --quiet"
      .split(" ")
      .concat(folder),
    { stdio: "ignore" },
  );
  const code = await new Promise((done) => made.once("exit", done));
  if (code !== 0) throw new Error(`the model could not be made: ${code}`);
  const server = await realServer({}, folder);
  return {
    url: server.url,
    folder,
    async stop() {
      await server.stop();
      await rm(place, { recursive: true, force: true });
    },
  };
}

/**
 * Our server over a scripted engine that has so many experts, or is dense with 0 rows. `options`: see
 * tests/support/fakeexperts.py.
 */
export async function shapedServer(
  rows: number,
  cols: number,
  options: object = {},
): Promise<RunningServer> {
  const child = spawn(
    join(BIN, "python"),
    ["-m", "tests.support.fakeexperts", `${rows}`, `${cols}`, JSON.stringify(options)],
    {
      cwd: ROOT,
      stdio: ["pipe", "pipe", process.env["COLIBRI_E2E_LOG"] ? "inherit" : "ignore"],
    },
  );
  return started(child, null);
}

/** Answers are written, one after the other, until the returned function is called. */
export function think(server: RunningServer): () => Promise<void> {
  const ended = new AbortController();
  const messages = [{ role: "user", content: "Think." }];
  const ask = async () => {
    // A model with random weights may end after a few words.
    while (!ended.signal.aborted) {
      const response = await fetch(`${server.url}/v1/chat/completions`, {
        method: "POST",
        signal: ended.signal,
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ stream: true, max_tokens: 4000, messages }),
      });
      await response.text();
    }
  };
  const asking = ask().catch(() => {});
  return async () => {
    ended.abort();
    await asking;
  };
}

/** Once it has said where it is. */
async function started(child: ChildProcess, home: string | null): Promise<RunningServer> {
  const url = await announced(child);
  return {
    url,
    async stop() {
      const gone = new Promise((done) => child.once("exit", done));
      child.stdin?.end();
      if (home) child.kill("SIGTERM");
      await gone;
      if (home) await rm(home, { recursive: true, force: true });
    },
  };
}

function announced(child: ChildProcess): Promise<string> {
  return new Promise((done, failed) => {
    if (!child.stdout) throw new Error("the server has no output");
    createInterface(child.stdout).on("line", (line) => {
      const url = /http:\/\/[^\s/]+/.exec(line)?.[0];
      if (url) done(url);
    });
    child.once("exit", (code) => failed(new Error(`the server ended with ${code}`)));
  });
}

/** What the scripted server answers: chunks of text, refusals, silence, broken connections. */
export interface Step {
  status?: number;
  headers?: Record<string, string>;
  body?: unknown;
  deltas?: object[];
  /** Between two deltas. */
  everyMs?: number;
  finish?: string;
  /** Breaks the connection after the deltas. */
  breaks?: boolean;
}

export interface ScriptedServer extends RunningServer {
  /** Answers for the next requests; the last one repeats. */
  script(...steps: Step[]): void;
  /** Bodies of the chat requests that came. */
  requests: Record<string, unknown>[];
}

const CORS = {
  "Access-Control-Allow-Origin": "*",
  "Access-Control-Allow-Headers": "*",
  "Access-Control-Expose-Headers": "*",
};

/** A server of the OpenAI kind that answers by script. */
export async function scriptedServer(): Promise<ScriptedServer> {
  let steps: Step[] = [];
  const requests: Record<string, unknown>[] = [];
  const server: Server = createServer((request, response) => {
    if (request.method === "OPTIONS") {
      response.writeHead(204, CORS).end();
      return;
    }
    if (request.url === "/v1/models") {
      const models = ["scripted-a", "scripted-b"].map((id) => ({ id, context_length: 4096 }));
      response.writeHead(200, { ...CORS, "Content-Type": "application/json" });
      response.end(JSON.stringify({ data: models }));
      return;
    }
    let body = "";
    request.on("data", (piece) => {
      body += piece;
    });
    request.on("end", () => {
      requests.push(JSON.parse(body));
      const step = steps.length > 1 ? steps.shift() : steps[0];
      void play(step ?? {}, response);
    });
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/v1`,
    requests,
    script(...next) {
      steps = next;
    },
    stop: () =>
      new Promise((done) => {
        server.closeAllConnections();
        server.close(() => done());
      }),
  };
}

async function play(step: Step, response: ServerResponse): Promise<void> {
  if (step.status !== undefined) {
    response.writeHead(step.status, {
      ...CORS,
      "Content-Type": "application/json",
      ...step.headers,
    });
    response.end(JSON.stringify(step.body ?? {}));
    return;
  }
  response.writeHead(200, { ...CORS, "Content-Type": "text/event-stream" });
  const chunk = (fields: object) => response.write(`data: ${JSON.stringify(fields)}\n\n`);
  const deltas = step.deltas ?? [{ content: "Hello." }];
  for (const delta of deltas) {
    if (response.destroyed) return;
    chunk({ id: "chatcmpl-1", model: "scripted-a", choices: [{ index: 0, delta }] });
    if (step.everyMs) await new Promise((done) => setTimeout(done, step.everyMs));
  }
  if (step.breaks) {
    response.destroy();
    return;
  }
  chunk({ choices: [{ index: 0, delta: {}, finish_reason: step.finish ?? "stop" }] });
  const usage = { prompt_tokens: 20, completion_tokens: deltas.length };
  chunk({ choices: [], usage });
  response.end("data: [DONE]\n\n");
}

/** Deltas that spell a text, a few characters at a time. */
export function spelled(text: string, size = 4): object[] {
  return Array.from({ length: Math.ceil(text.length / size) }, (_, at) => ({
    content: text.slice(at * size, (at + 1) * size),
  }));
}
