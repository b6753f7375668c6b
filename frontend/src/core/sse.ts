/**
 * Server-sent events, read from text that arrives in any pieces.
 *
 * Not for: `id` and `retry`, which need a connection that is opened again; ours are POSTs.
 */

export interface SseEvent {
  event: string;
  data: string;
}

/** A reader of one stream: `push` gives the events that a piece completes. */
export function createSseParser(): { push(piece: string): SseEvent[] } {
  let rest = "";
  let event = "";
  let data: string[] = [];
  let begun = false;

  function line(text: string, events: SseEvent[]): void {
    if (text === "") {
      if (data.length > 0) events.push({ event: event || "message", data: data.join("\n") });
      event = "";
      data = [];
      return;
    }
    const colon = text.indexOf(":");
    if (colon === 0) return;
    const field = colon < 0 ? text : text.slice(0, colon);
    const value = colon < 0 ? "" : text.slice(colon + (text[colon + 1] === " " ? 2 : 1));
    if (field === "data") data.push(value);
    if (field === "event") event = value;
  }

  return {
    push(piece) {
      rest += piece;
      if (!begun && rest !== "") {
        begun = true;
        if (rest.startsWith("\uFEFF")) rest = rest.slice(1);
      }
      const events: SseEvent[] = [];
      let start = 0;
      for (let at = start; at < rest.length; at++) {
        const character = rest[at];
        if (character !== "\n" && character !== "\r") continue;
        // A carriage return at the very end may be half of a line's end.
        if (character === "\r" && at === rest.length - 1) break;
        line(rest.slice(start, at), events);
        if (character === "\r" && rest[at + 1] === "\n") at++;
        start = at + 1;
      }
      rest = rest.slice(start);
      return events;
    },
  };
}
