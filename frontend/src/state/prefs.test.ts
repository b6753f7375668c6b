import { expect, test } from "vitest";
import { loadPrefs } from "./prefs";
import { writeStored } from "./storage";

function loaded(learnt: unknown) {
  writeStored("colibri.prefs", JSON.stringify({ learnt }));
  return loadPrefs().learnt;
}

test("what was learnt is taken over", () => {
  const learnt = { " m": { prefill: 900, decode: 0.05, characters: 3.4 } };
  expect(loaded(learnt)).toEqual(learnt);
});

test("stored figures that cannot be are forgotten, each by itself", () => {
  const nothing = { prefill: null, decode: null, characters: null };
  const odd = {
    huge: { prefill: 1e300, decode: 12, characters: 1e300 },
    tiny: { prefill: 1e-300, decode: 0, characters: 0 },
    negative: { prefill: -5, decode: -1e300, characters: -1 },
    // NaN is stored as null.
    words: { prefill: "fast", decode: Number.NaN, characters: [3] },
    missing: {},
    none: null,
    number: 7,
  };
  expect(loaded(odd)).toEqual({
    huge: { ...nothing, decode: 12 },
    tiny: nothing,
    negative: nothing,
    words: nothing,
    missing: nothing,
    none: nothing,
    number: nothing,
  });
});
