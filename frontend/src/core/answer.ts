/**
 * One answer while it arrives: gathers chunks, and gives parts and figures at any moment.
 *
 * Not for: the connection, or the screen. It is a plain mutable object, because a hundred chunks a
 * second must not copy the answer a hundred times; whoever shows it asks for `parts()` once a frame.
 */
import type { Chunk, Timings, Usage } from "./chunk";
import { BEARING_MS, Pace } from "./pace";
import { splitThink } from "./think";
import type { Finish, Part, TurnStats } from "./types";

interface Call {
  id: string;
  name: string;
  arguments: string;
}

export class Answer {
  id: string | null = null;
  model: string | null = null;
  finish: Finish | null = null;
  usage: Usage | null = null;
  timings: Timings | null = null;
  readonly pace = new Pace();
  /** Chunks with something in them: about one a token, until the server's count comes. */
  pieces = 0;
  firstAt: number | null = null;
  lastAt: number | null = null;
  textAt: number | null = null;
  private content = "";
  private thought = "";
  private readonly calls = new Map<number, Call>();

  /** `now` in milliseconds of any steady clock. */
  take(chunk: Chunk, now: number): void {
    this.id ??= chunk.id;
    this.model ??= chunk.model;
    this.finish = chunk.finish ?? this.finish;
    this.usage = chunk.usage ?? this.usage;
    this.timings = chunk.timings ?? this.timings;
    if (chunk.text !== "" || chunk.reasoning !== "" || chunk.tools.length > 0) {
      this.pieces += 1;
      this.pace.take(now);
      this.firstAt ??= now;
      this.lastAt = now;
    }
    if (chunk.text !== "") this.textAt ??= now;
    this.content += chunk.text;
    this.thought += chunk.reasoning;
    for (const delta of chunk.tools) {
      const call = this.calls.get(delta.index) ?? { id: "", name: "", arguments: "" };
      call.id ||= delta.id;
      call.name ||= delta.name;
      call.arguments += delta.arguments;
      this.calls.set(delta.index, call);
    }
  }

  parts(): Part[] {
    const { reasoning, text } =
      this.thought === ""
        ? splitThink(this.content)
        : { reasoning: this.thought, text: this.content };
    const parts: Part[] = [];
    if (reasoning !== "") parts.push({ type: "reasoning", text: reasoning });
    if (text !== "") parts.push({ type: "text", text });
    for (const call of this.calls.values()) parts.push({ type: "tool_call", ...call });
    return parts;
  }

  /**
   * Figures at `now`, of a request that was sent at `sentAt`. Times that the server has measured go
   * before those of our clock, which also counts what lies between: a proxy that gathers, a page that
   * is busy.
   */
  stats(sentAt: number, now: number, queueWaitMs: number | null): TurnStats {
    const { timings } = this;
    const completion = this.usage?.completion_tokens ?? this.pieces;
    const prompt = this.usage?.prompt_tokens ?? null;
    const cached = this.usage?.cached_tokens ?? null;
    const seen = this.firstAt === null ? null : this.firstAt - sentAt;
    // Who tells no queue may have had one.
    const told = timings && queueWaitMs !== null ? queueWaitMs + timings.promptMs : null;
    return {
      prompt_tokens: prompt,
      completion_tokens: completion,
      cached_tokens: cached,
      queue_wait_ms: queueWaitMs,
      ttft_ms: this.firstAt === null ? null : (told ?? seen),
      total_ms: now - sentAt,
      tokens_per_second: timings ? timings.decode : this.written(completion),
      prefill_tokens_per_second: timings
        ? timings.prefill
        : this.read((prompt ?? 0) - (cached ?? 0), (seen ?? 0) - (queueWaitMs ?? 0)),
      estimated: this.usage === null,
    };
  }

  /** Tokens per second of the answer by our clock; a piece may be more than one token. */
  private written(tokens: number): number | null {
    const { rate } = this.pace;
    return rate === null ? null : (rate * tokens) / this.pieces;
  }

  /** Of the prompt. What comes in one go may have been finished long before its first word was seen. */
  private read(tokens: number, ms: number): number | null {
    const streamed = this.pace.rate !== null;
    return streamed && tokens > 0 && ms >= BEARING_MS ? (tokens * 1000) / ms : null;
  }
}
