import { expect, test } from "vitest";
import { plainText } from "@/core/plain";

test("rendered markdown becomes what somebody would type", () => {
  const box = document.createElement("div");
  box.innerHTML =
    "<h2>Title</h2><p>One <b>two</b>\n three<br>four</p><ul><li>a</li><li>b<ul><li>c</li></ul></li></ul>" +
    '<ol start="3"><li>x</li></ol><div><div data-nocopy>python</div><pre><code>a  b\n  c</code></pre></div>' +
    "<table><tr><th>h</th><th>i</th></tr><tr><td>1</td><td>2</td></tr></table>" +
    '<p><span class="katex"><annotation>x^2</annotation><span>x2</span></span></p>';
  expect(plainText(box)).toBe(
    "Title\n\nOne two three\nfour\n\n- a\n- b\n- c\n\n3. x\n\na  b\n  c\n\nh\ti\n1\t2\n\nx^2",
  );
});
