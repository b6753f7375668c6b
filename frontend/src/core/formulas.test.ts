import { expect, test } from "vitest";
import { prepareFormulas } from "./formulas";

test.each([
  ["a formula stays", "so $x^2$ is", "so $x^2$ is"],
  ["money is escaped", "from $5 to $10 each", "from \\$5 to \\$10 each"],
  ["money beside a formula", "$5 and $y$", "\\$5 and $y$"],
  ["brackets", "a \\(x\\) b", "a $x$ b"],
  ["displayed brackets", "\\[\nx\n\\]", "$$\nx\n$$"],
  ["displayed in one line", "\\[x\\]", "$$\nx\n$$"],
  ["displayed inside a sentence", "so \\[x\n+y\\] is", "so $$x +y$$ is"],
  ["displayed dollars", "$$x$$", "$$\nx\n$$"],
  ["code span", "`$x$ \\(y\\)` $z$", "`$x$ \\(y\\)` $z$"],
  ["fence", "```\n$a$ \\[b\\]\n```\n$5", "```\n$a$ \\[b\\]\n```\n\\$5"],
  ["open fence", "```\n$a", "```\n$a"],
  ["escaped dollar", "\\$5 $x$", "\\$5 $x$"],
  ["not closed", "costs $5", "costs \\$5"],
  ["not over paragraphs", "$a\n\nb$", "\\$a\n\nb\\$"],
  ["unfinished bracket", "\\(x", "\\(x"],
])("%s", (_, text, expected) => {
  expect(prepareFormulas(text)).toBe(expected);
});

test("a long text without an end takes no long time", () => {
  const text = "$a ".repeat(8000);
  expect(prepareFormulas(text).length).toBeGreaterThan(text.length);
});
