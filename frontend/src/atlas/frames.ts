/**
 * When the picture moves on: one step a frame while something is to be seen, none at rest.
 *
 * The next step waits until the last one is drawn. So whoever draws slowly is not flooded, and what
 * stands over the picture does not run ahead of it.
 */
const LONGEST_SECONDS = 0.05;

export class Frames {
  readonly #step: (seconds: number) => boolean | null;
  #frame = 0;
  #wished = false;
  #drawing = false;
  #lastMs = 0;

  /**
   * `step` moves by the time passed and says whether it has reached its end; false asks for another
   * one. It must lead to `drawn`, later; null says that there is nothing to draw on.
   */
  constructor(step: (seconds: number) => boolean | null) {
    this.#step = step;
  }

  /** There is something new to be seen. */
  wish(): void {
    this.#wished = true;
    this.#go();
  }

  /** The last step is to be seen. */
  drawn(): void {
    this.#drawing = false;
    this.#go();
  }

  /** Nothing is drawn any more, until the next wish. */
  end(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    this.#wished = false;
    this.#drawing = false;
  }

  #go(): void {
    if (!this.#wished || this.#drawing || this.#frame !== 0) return;
    this.#frame = requestAnimationFrame((now) => {
      this.#frame = 0;
      this.#wished = false;
      // The first frame after a rest would count the rest.
      const seconds = Math.min((now - this.#lastMs) / 1000, LONGEST_SECONDS);
      this.#lastMs = now;
      const there = this.#step(seconds);
      this.#drawing = there !== null;
      if (there === false) this.wish();
    });
  }
}
