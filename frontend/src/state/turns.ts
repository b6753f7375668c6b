/**
 * Answers that are being made: from sending a branch to the stored answer.
 *
 *     waiting -> reading -> thinking/writing -> stored in the chat
 *        └── resting (429, 503) ── waiting again
 *
 * Text that arrives does not go through the chat's tree: it is gathered in an `Answer` and shown
 * once a frame through this store, so that only the growing message is rendered again.
 */
import { create } from "zustand";
import { HttpError, type Server } from "@/api/http";
import { BrokenStreamError, streamChat } from "@/api/openai";
import { Answer } from "@/core/answer";
import { connectionFailure, failureInStream, failureOf, passes, retryDelay } from "@/core/failure";
import type { Steady } from "@/core/pace";
import { isEmpty } from "@/core/parts";
import { pathTo } from "@/core/tree";
import type { Failure, Finish, Message, Part } from "@/core/types";
import { CONTINUE, isBegun, type WireMessage, wireBody, wireMessages } from "@/core/wire";
import { findChat, newMessage, putMessage, removeMessage, saveMeanwhile } from "./chats";
import { learn } from "./learnt";
import { currentModelId } from "./models";
import { currentServer, sessionLost } from "./session";

export type Phase = "waiting" | "resting" | "reading" | "thinking" | "writing";

export interface LiveTurn {
  chatId: string;
  messageId: string;
  phase: Phase;
  /** What the answer consists of so far. */
  parts: Part[];
  /** Tokens so far, about. */
  pieces: number;
  /** `performance.now()` of the sending. */
  sentAt: number;
  /** What its speed so far is measured by. */
  steady: Steady | null;
  queueWaitMs: number | null;
  /** The number of the request on our server, for its progress. */
  job: string | null;
  rest: { failure: Failure; until: number; attempt: number } | null;
}

export const useTurns = create<{ turns: Record<string, LiveTurn> }>()(() => ({ turns: {} }));

const controllers = new Map<string, AbortController>();
const SAVE_MS = 3000;
const MOST_RETRIES = 40;

/** Makes an answer to the message `parent`. */
export function answer(chatId: string, parent: string): void {
  const found = findChat(chatId);
  if (!found) return;
  const wire = wireMessages(pathTo(found.tree, parent), found.chat.settings);
  const message = newMessage("assistant", parent, []);
  putMessage(chatId, message);
  void run(chatId, message, wire);
}

/** Makes another answer beside this one; one that failed without a word makes room for it. */
export function again(chatId: string, messageId: string): void {
  const message = findChat(chatId)?.tree.messages[messageId];
  if (message?.parent == null) return;
  if (isEmpty(message)) removeMessage(chatId, messageId);
  answer(chatId, message.parent);
}

/** Lets the model go on with an answer that was cut off. */
export function goOn(chatId: string, messageId: string): void {
  const found = findChat(chatId);
  const message = found?.tree.messages[messageId];
  if (!found || !message) return;
  const wire = wireMessages(pathTo(found.tree, messageId), found.chat.settings);
  void run(chatId, message, wire, true);
}

/** Ends an answer that is being made; what has come so far stays. */
export function stop(messageId: string): void {
  controllers.get(messageId)?.abort();
}

export function runningIn(chatId: string): LiveTurn | undefined {
  return Object.values(useTurns.getState().turns).find((turn) => turn.chatId === chatId);
}

interface End {
  finish: Finish;
  failure: Failure | null;
}

/** `goesOn`: the messages end with the beginning of the answer. */
async function run(chatId: string, message: Message, wire: WireMessage[], goesOn = false) {
  const settings = findChat(chatId)?.chat.settings;
  if (!settings) return;
  const controller = new AbortController();
  controllers.set(message.id, controller);
  const server = currentServer();
  const model = currentModelId();
  // Our server goes on from the very token; any other is asked to, in words.
  let finishes = goesOn && server.own && isBegun(wire);
  const asked: WireMessage[] = goesOn ? [...wire, { role: "user", content: CONTINUE }] : wire;
  const body = () => wireBody(model, finishes ? wire : asked, settings, server.own, finishes);
  const turn = startTurn(chatId, message);
  let end: End;
  let result = new Answer();
  for (let attempt = 1; ; attempt++) {
    result = new Answer();
    end = await stream(server, body(), turn, result, message, controller.signal);
    const { failure } = end;
    if (failure?.kind === "login") sessionLost();
    if (finishes && failure?.code === "unsupported_parameter") {
      // Not every model can.
      finishes = false;
      continue;
    }
    const again = failure !== null && passes(failure) && attempt <= MOST_RETRIES;
    if (!again || result.pieces > 0) break;
    if (!(await rest(turn, failure, attempt, controller.signal))) {
      end = { finish: "cancelled", failure: null };
      break;
    }
  }
  controllers.delete(message.id);
  finishTurn(turn, message, result, end);
  if (end.failure === null) learn(server, model || (result.model ?? ""), wire, result, turn);
}

async function stream(
  server: Server,
  body: ReturnType<typeof wireBody>,
  turn: Turn,
  result: Answer,
  message: Message,
  signal: AbortSignal,
): Promise<End> {
  turn.begin(result);
  try {
    const chunks = streamChat(server, body, signal, ({ queueWaitMs }) => turn.admit(queueWaitMs));
    for await (const chunk of chunks) {
      if (chunk.error) {
        const failure = failureInStream(chunk.error.message, chunk.error.code);
        return { finish: "dropped", failure };
      }
      result.take(chunk, performance.now());
      turn.grow(message);
    }
    return { finish: result.finish ?? "stop", failure: null };
  } catch (error) {
    if (signal.aborted) return { finish: "cancelled", failure: null };
    return { finish: "dropped", failure: failureFrom(error) };
  }
}

function failureFrom(error: unknown): Failure {
  if (error instanceof HttpError) return failureOf(error.answer);
  const text = error instanceof Error ? error.message : String(error);
  if (error instanceof BrokenStreamError) return connectionFailure("dropped", text);
  if (error instanceof TypeError) return connectionFailure("unreachable", text);
  return { ...connectionFailure("dropped", text), kind: "server" };
}

/** Waits before the next try; false if the user has ended it meanwhile. */
function rest(turn: Turn, failure: Failure, attempt: number, signal: AbortSignal) {
  const seconds = retryDelay(failure, attempt);
  turn.show({ phase: "resting", rest: { failure, until: Date.now() + seconds * 1000, attempt } });
  return new Promise<boolean>((done) => {
    const timer = setTimeout(() => done(true), seconds * 1000);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      done(false);
    });
  });
}

// ---- what is shown meanwhile ----

/** The running turn as this module sees it; `useTurns` has what the page sees. */
class Turn {
  sentAt = performance.now();
  queueWaitMs: number | null = null;
  private frame = 0;
  private savedAt = performance.now();
  private result = new Answer();

  constructor(
    readonly chatId: string,
    readonly messageId: string,
    private readonly base: readonly Part[],
  ) {}

  begin(result: Answer): void {
    this.result = result;
    this.sentAt = performance.now();
    this.show({ phase: "waiting", rest: null, sentAt: this.sentAt, steady: null, pieces: 0 });
  }

  admit(queueWaitMs: number | null): void {
    this.queueWaitMs = queueWaitMs;
    this.show({ phase: "reading", queueWaitMs });
  }

  /** Shows what has come with the next frame; hidden pages have no frames, and need none. */
  grow(message: Message): void {
    if (this.frame === 0) this.frame = nextFrame(() => this.flush());
    const at = performance.now();
    if (at - this.savedAt < SAVE_MS || this.result.pieces === 0) return;
    this.savedAt = at;
    saveMeanwhile(this.chatId, { ...message, parts: this.parts(), updated_at_ms: Date.now() });
  }

  parts(): Part[] {
    return joined(this.base, this.result.parts());
  }

  private flush(): void {
    this.frame = 0;
    const { firstAt, textAt, pieces, pace, id } = this.result;
    const phase = firstAt === null ? "reading" : textAt === null ? "thinking" : "writing";
    const job = id?.replace(/^chatcmpl-/, "") ?? null;
    this.show({ phase, parts: this.parts(), pieces, steady: pace.steady, job });
  }

  show(change: Partial<LiveTurn>): void {
    useTurns.setState(({ turns }) => {
      const turn = turns[this.messageId];
      return turn ? { turns: { ...turns, [this.messageId]: { ...turn, ...change } } } : {};
    });
  }

  close(): void {
    cancelFrame(this.frame);
    useTurns.setState(({ turns }) => {
      const { [this.messageId]: _, ...rest } = turns;
      return { turns: rest };
    });
  }
}

// A hidden page gets no animation frames; what has come is then shown a few times a second, so that
// it is there when the page comes back.
const HIDDEN_MS = 250;

function nextFrame(task: () => void): number {
  if (document.visibilityState === "visible") return requestAnimationFrame(task);
  return -Number(setTimeout(task, HIDDEN_MS));
}

function cancelFrame(frame: number): void {
  if (frame > 0) cancelAnimationFrame(frame);
  else if (frame < 0) clearTimeout(-frame);
}

/** An answer goes on: text joins the text that is there, anything else is added. */
export function joined(base: readonly Part[], added: readonly Part[]): Part[] {
  const parts = [...base];
  for (const part of added) {
    const at = parts.findIndex(({ type }) => type === part.type);
    const old = parts[at];
    if (part.type === "text" && old?.type === "text") {
      parts[at] = { type: "text", text: old.text + part.text };
    } else if (part.type === "reasoning" && old?.type === "reasoning") {
      parts[at] = { type: "reasoning", text: `${old.text}\n\n${part.text}` };
    } else {
      parts.push(part);
    }
  }
  return parts;
}

function startTurn(chatId: string, message: Message): Turn {
  const turn = new Turn(chatId, message.id, message.parts);
  const live: LiveTurn = {
    chatId,
    messageId: message.id,
    phase: "waiting",
    parts: message.parts,
    pieces: 0,
    sentAt: turn.sentAt,
    steady: null,
    queueWaitMs: null,
    job: null,
    rest: null,
  };
  useTurns.setState(({ turns }) => ({ turns: { ...turns, [message.id]: live } }));
  return turn;
}

function finishTurn(turn: Turn, message: Message, result: Answer, end: End): void {
  const parts = turn.parts();
  const done: Message = {
    ...message,
    parts,
    updated_at_ms: Date.now(),
    meta: {
      finish: end.finish,
      stats: result.stats(turn.sentAt, performance.now(), turn.queueWaitMs),
      ...(result.model && { model: result.model }),
      ...(end.failure && { failure: end.failure }),
      ...(result.firstAt !== null && {
        reasoning_ms: (result.textAt ?? result.lastAt ?? result.firstAt) - result.firstAt,
      }),
    },
  };
  const nothing = isEmpty(done) && end.failure === null && end.finish === "cancelled";
  if (nothing) removeMessage(turn.chatId, message.id);
  else putMessage(turn.chatId, done);
  turn.close();
}
