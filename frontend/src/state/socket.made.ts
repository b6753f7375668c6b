/** A WebSocket for tests, which says what it is told to say. */
export class FakeSocket {
  static readonly OPEN = 1;
  static last: FakeSocket;
  readonly readyState = 1;
  readonly sent: Record<string, unknown>[] = [];
  binaryType = "";
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: (() => void) | null = null;

  constructor(readonly url: string) {
    FakeSocket.last = this;
  }

  send(text: string): void {
    this.sent.push(JSON.parse(text));
  }

  close(): void {
    this.onclose?.();
  }

  says(message: object | ArrayBuffer): void {
    this.onmessage?.({
      data: message instanceof ArrayBuffer ? message : JSON.stringify(message),
    });
  }
}
