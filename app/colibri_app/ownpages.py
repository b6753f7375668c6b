"""The two pages that the window shows without a server: starting, and what went wrong.

For: `window`. Each speaks to the window as the dashboard does (`bridge`). Everything that comes
from elsewhere is escaped: last words are text of other programs. Pure.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import Final

_PAGE: Final = """<!doctype html>
<html lang="{language}" data-theme="{theme}"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Colibri</title><style>
:root{{--bg:#f6faf8;--fg:#1d2b2a;--dim:#526563;--box:#e3eeea;--go:#0f766e;--on:#fff}}
[data-theme=dark]{{--bg:#101716;--fg:#dfeae7;--dim:#9db1ae;--box:#1d2b2a;--go:#5fd3bc;--on:#06201c}}
*{{box-sizing:border-box}}
body{{margin:0;min-height:100vh;display:flex;flex-direction:column;justify-content:center;
font:16px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg)}}
main{{width:100%;max-width:44rem;margin:0 auto;padding:2rem 1.25rem}}
h1{{font-size:1.35rem;margin:0 0 .5rem}}p{{margin:.5rem 0;color:var(--dim);overflow-wrap:anywhere}}
pre{{max-height:14rem;overflow:auto;background:var(--box);padding:.75rem;border-radius:8px;
font-size:.8rem;white-space:pre-wrap;overflow-wrap:anywhere}}
nav{{display:flex;flex-wrap:wrap;gap:.5rem;margin-top:1rem}}
button{{font:inherit;padding:.5rem 1rem;border-radius:8px;border:1px solid var(--dim);
background:none;color:var(--fg);cursor:pointer}}
button:first-child{{background:var(--go);border-color:var(--go);color:var(--on)}}
button:focus-visible{{outline:3px solid var(--go);outline-offset:2px}}
.bar{{height:4px;border-radius:2px;background:var(--box);overflow:hidden;margin-top:1rem}}
.bar i{{display:block;width:35%;height:100%;background:var(--go);animation:go 1.4s infinite}}
@keyframes go{{from{{transform:translateX(-100%)}}to{{transform:translateX(300%)}}}}
@media(prefers-reduced-motion:reduce){{.bar i{{animation:none;width:100%}}}}
</style></head><body><main>{body}</main><script>
(() => {{
  let said = [{{ id: 0, name: "ready", args: {{}} }}];
  window.colibriShell = {{
    take() {{ const now = said; said = []; return now; }},
    tell() {{}},
  }};
  for (const button of document.querySelectorAll("button"))
    button.onclick = () => said.push({{ id: 0, name: button.dataset.do, args: {{}} }});
  const first = document.querySelector("button");
  if (first) first.focus();
}})();
</script></body></html>
"""


def starting(words: Mapping[str, str], language: str, *, dark: bool, again: bool = False) -> str:
    """What is shown until the server answers."""
    text = words["again_text" if again else "starting_text"]
    body = (
        f'<h1 role="status">{html.escape(words["starting"])}</h1><p>{html.escape(text)}</p>'
        '<div class="bar" aria-hidden="true"><i></i></div>'
    )
    return _page(body, language, dark=dark)


def trouble(
    words: Mapping[str, str],
    language: str,
    *,
    dark: bool,
    kind: str,
    problem: str = "",
    last_words: Iterable[str] = (),
    log: str = "",
) -> str:
    """What went wrong, `kind` failed, empty or lost, with ways on: try again, log, web browser."""
    parts = [f'<h1 role="alert">{html.escape(words[kind])}</h1>']
    if problem:
        parts.append(f"<p>{html.escape(problem)}</p>")
    parts.append(f"<p>{html.escape(words[f'{kind}_text'])}</p>")
    lines = "\n".join(last_words)
    if lines:
        parts.append(f'<pre tabindex="0">{html.escape(lines)}</pre>')
    if log:
        parts.append(f"<p>{html.escape(words['log_file'].format(path=log))}</p>")
    actions = [("retry", "retry"), ("logs", "logs")]
    # Without a server the browser would show nothing either; there, another model may be the way.
    actions.append(("open_model", "open_model") if kind == "failed" else ("browser", "in_browser"))
    buttons = "".join(
        f'<button type="button" data-do="{name}">{html.escape(words[word])}</button>'
        for name, word in actions
    )
    parts.append(f"<nav>{buttons}</nav>")
    return _page("".join(parts), language, dark=dark)


def _page(body: str, language: str, *, dark: bool) -> str:
    return _PAGE.format(body=body, language=language, theme="dark" if dark else "light")
