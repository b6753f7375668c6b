import { expect, test } from "vitest";
import de from "./de.json";
import en from "./en.json";
import { languageOf } from "./index";

type Words = { [key: string]: string | Words };

function flat(words: Words, before = ""): Map<string, string> {
  const all = new Map<string, string>();
  for (const [key, value] of Object.entries(words)) {
    if (typeof value === "string") all.set(before + key, value);
    else for (const [name, text] of flat(value, `${before}${key}.`)) all.set(name, text);
  }
  return all;
}

const english = flat(en);
const german = flat(de);
const holes = (text: string) => [...text.matchAll(/{{(\w+)}}/g)].map(([, name]) => name).sort();

test("both languages have the same keys", () => {
  expect([...german.keys()].sort()).toEqual([...english.keys()].sort());
});

test.each([...english])(
  "%s has the same holes in both languages, and words in them",
  (key, text) => {
    const other = german.get(key) ?? "";
    expect(other.trim()).not.toBe("");
    expect(holes(other)).toEqual(holes(text));
  },
);

test("the browser's language is taken if we have it", () => {
  expect(languageOf(null, ["fr-FR", "de-AT", "en"])).toBe("de");
  expect(languageOf(null, ["fr"])).toBe("en");
  expect(languageOf("en", ["de"])).toBe("en");
});
