/**
 * How fast an answer arrives, by the clock of the one who reads it.
 *
 * A proxy or a busy page hands over in one go what was made over seconds. So the pieces of the first
 * burst are not counted, only those after it, and a span that is too short for that gives no speed.
 */

/** Pieces that follow each other faster than this have come in one go ... */
const BURST_GAP_MS = 5;
/** ... but a server may also be that fast: no burst is longer. */
const BURST_MS = 50;
/** What a speed must be measured over at least. */
export const BEARING_MS = 200;

/** Pieces after the first burst, and when that had come (`performance.now()`). */
export interface Steady {
  pieces: number;
  since: number;
}

export class Pace {
  private first = 0;
  private last = 0;
  private bursting = true;
  private later = 0;
  private burstEnd: number | null = null;

  /** A piece has come; `now` in milliseconds of any steady clock. */
  take(now: number): void {
    if (this.burstEnd === null) {
      this.first = now;
      this.burstEnd = now;
    } else if (this.bursting && now - this.last < BURST_GAP_MS && now - this.first < BURST_MS) {
      this.burstEnd = now;
    } else {
      this.bursting = false;
      this.later += 1;
    }
    this.last = now;
  }

  /** Null before the first piece. */
  get steady(): Steady | null {
    return this.burstEnd === null ? null : { pieces: this.later, since: this.burstEnd };
  }

  /** Pieces a second between the first burst and the last piece; null if nobody can tell. */
  get rate(): number | null {
    return this.steady && steadyRate(this.steady, this.last);
  }
}

/** Pieces a second up to `until`; null if there are none, or the time is too short to tell. */
export function steadyRate({ pieces, since }: Steady, until: number): number | null {
  const span = until - since;
  return pieces > 0 && span >= BEARING_MS ? (pieces * 1000) / span : null;
}
