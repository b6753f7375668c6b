import { render, screen, waitFor } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { Tooltip } from "radix-ui";
import { expect, test } from "vitest";
import { Markdown } from "./Markdown";

function show(text: string, live = false) {
  return render(
    <Tooltip.Provider>
      <Markdown text={text} live={live} />
    </Tooltip.Provider>,
  );
}

const HOSTILE = [
  "<img src=x onerror=alert(1)>",
  "<script>alert(1)</script>",
  "[x](javascript:alert(1))",
  "[x](JaVaScRiPt:alert(1))",
  "[x](data:text/html,<script>alert(1)</script>)",
  "[x](vbscript:x)",
  "![x](javascript:alert(1))",
  '<iframe src="https://evil.example"></iframe>',
  '<a href="javascript:alert(1)">x</a>',
  '<svg onload="alert(1)"></svg>',
  "<style>body{display:none}</style>",
  '<form action="https://evil.example"><input name="a"></form>',
  "<base href=https://evil.example>",
  "$\\href{javascript:alert(1)}{x}$",
  "$\\includegraphics{https://evil.example/a.png}$",
  "[x]: javascript:alert(1)\n\n[x]",
  "<javascript:alert(1)>",
];

test.each(HOSTILE)("R133: %s is inert", (text) => {
  const { container } = show(`before\n\n${text}\n\nafter`);
  for (const name of ["script", "img", "iframe", "style", "form", "input", "base", "object"]) {
    expect(container.querySelector(name), name).toBe(null);
  }
  for (const element of container.querySelectorAll("*")) {
    for (const { name, value } of element.attributes) {
      expect(name).not.toMatch(/^on/);
      if (name === "href" || name === "src") expect(value).toMatch(/^(https?:|mailto:)/);
    }
  }
  expect(container.textContent).toContain("before");
  expect(container.textContent).toContain("after");
});

test("HTML is shown as the text that it is, a line break as a break", () => {
  const { container } = show("a </br></br> <b>b</b>\n\n| x |\n| - |\n| 1<br>2 |");
  expect(container.textContent).toContain("</br></br> <b>b</b>");
  expect(container.querySelectorAll("td br")).toHaveLength(1);
});

test("links that may be followed open elsewhere and tell nothing about this page", () => {
  show("[safe](https://example.com/a) and ![pic](https://example.com/p.png)");
  for (const name of ["safe", "pic"]) {
    const link = screen.getByRole("link", { name });
    expect(link).toHaveAttribute("target", "_blank");
    expect(link.getAttribute("rel")).toContain("noreferrer");
  }
});

test("GFM: tables, tasks, strike; formulas; coloured code that can be copied", async () => {
  const { container } = show(
    "| a |\n| - |\n| b |\n\n- [x] done\n\n~~old~~\n\n$x^2$ costs $5\n\n```python\nprint(1)\n```",
  );
  expect(screen.getByRole("table")).toBeInTheDocument();
  expect(screen.getByRole("checkbox")).toBeChecked();
  expect(container.querySelector("del")).toHaveTextContent("old");
  await waitFor(() => expect(container.querySelector(".katex")).not.toBe(null), {
    timeout: 20_000,
  });
  expect(container.textContent).toContain("costs $5");
  await waitFor(() => expect(container.querySelector(".hljs-built_in")).not.toBe(null), {
    timeout: 20_000,
  });
  const user = userEvent.setup();
  await user.click(screen.getByRole("button", { name: "Copy code" }));
  expect(await navigator.clipboard.readText()).toBe("print(1)");
});

test("R190: broken text is shown, whatever it looks like while it comes", () => {
  const text =
    "# T\n\n</br>\n\n```js\nlet a\n\n| a | b\n|--\n\n- [ ] x\n**bold _it\n\n$$ \\frac{1}{\n";
  for (let length = 1; length <= text.length; length += 3) {
    const { container, unmount } = show(text.slice(0, length), true);
    expect(container.querySelector(".prose")).not.toBe(null);
    unmount();
  }
});

test("R190: a line of 200 kB is shown as plain text at once", () => {
  const started = performance.now();
  const { container } = show("**x** ".repeat(34_000));
  expect(container.textContent?.length).toBe(204_000);
  expect(container.querySelector("strong")).toBe(null);
  // Parsed as markdown it would take minutes.
  expect(performance.now() - started).toBeLessThan(20_000);
});
