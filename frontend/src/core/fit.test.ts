import { expect, test } from "vitest";
import { inOrder, shares, verdict } from "./fit";

const speed = (high: number) => ({ low: high / 2, high });

test("a verdict says whether it fits, from where, and whether one can talk to it", () => {
  const resident = { fits: true, resident: true, tokens_per_second: speed(40) };
  expect(verdict(resident)).toBe("resident");
  expect(verdict({ ...resident, resident: false })).toBe("streams");
  expect(verdict({ ...resident, resident: false, tokens_per_second: speed(0.4) })).toBe("slow");
  expect(verdict({ fits: false, resident: false, tokens_per_second: null })).toBe("no");
  expect(verdict({ ...resident, tokens_per_second: null })).toBe("resident");
});

test("what is not in memory is on disk; nothing is there twice", () => {
  const tiers = { vram_bytes: 0, ram_bytes: 30, disk_bytes: 100 };
  expect(shares(tiers, false)).toEqual({ vram: 0, ram: 30, disk: 70 });
  expect(shares(tiers, true)).toEqual({ vram: 0, ram: 30, disk: 0 });
  expect(shares({ ...tiers, ram_bytes: 130 }, false).disk).toBe(0);
});

test("the loaded model stands first, then the smaller ones; broken ones are left out", () => {
  const model = (name: string, size: number, more: object = {}) => ({
    name,
    size_bytes: size,
    loaded: false,
    problem: null,
    ...more,
  });
  const models = [
    model("large", 900),
    model("broken", 1, { problem: "config.json is no JSON." }),
    model("small", 20),
    model("loaded", 500, { loaded: true }),
    model("fine", 30, { problem: "" }),
  ];
  expect(inOrder(models).map(({ name }) => name)).toEqual(["loaded", "small", "fine", "large"]);
});
