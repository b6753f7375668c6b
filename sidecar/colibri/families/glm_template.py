"""The chat formats of GLM-5.2 and 5.3 as jinja2 templates, for containers that ship none.

For: `glm_moe_dsa`, whose published int4 containers often lack chat_template.jinja. A template in
the model folder always wins. Variables besides `messages`, `tools` and `add_generation_prompt`:
`enable_thinking` (5.2 alone, default true), `reasoning_effort` (5.2: `high`, anything else means
max; 5.3: also `low`) and `clear_thinking` (default true: reasoning before the last user message is
left out). Reasoning of earlier turns is read from `reasoning_content`. 5.3 puts the results of
tools into the order of their calls, if their ids tell it. Thread rule: constants and a pure
function.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

_TOOLS: Final = """<|system|>
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{% for tool in tools %}
{% set spec = tool.function if tool.function is defined else tool %}
{% set shown = namespace(parts=[]) %}
{% for key, value in spec.items() if key not in ('strict', 'defer_loading') %}
{% set shown.parts = shown.parts + [key | tojson ~ ': ' ~ value | tojson] %}
{% endfor %}
{{ '{' ~ shown.parts | join(', ') ~ '}' }}
{% endfor %}
</tools>

For each function call, output the function name and arguments within the following XML format:
<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>\
<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"""

_TEXT: Final = """
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content is iterable -%}
{%- for item in content if item.type == 'text' -%}{{ item.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}"""

_MESSAGES: Final = """
{%- set last = namespace(user=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|user|>{{ text(m.content) }}
{%- elif m.role == 'system' -%}<|system|>{{ text(m.content) }}
{%- elif m.role == 'tool' -%}
RESULTS
{%- elif m.role == 'assistant' -%}
{%- set kept = loop.index0 > last.user or not clear_thinking | default(true) -%}
<|assistant|><think>
{%- if kept and m.reasoning_content is string -%}{{ m.reasoning_content | trim }}{%- endif -%}
</think>{{ text(m.content) | trim }}
{%- for call in m.tool_calls or [] -%}
{%- set f = call.function if call.function is defined else call -%}
<tool_call>{{ f.name }}
{%- for key, value in f.arguments.items() -%}
<arg_key>{{ key }}</arg_key><arg_value>
{{- value if value is string else value | tojson -}}
</arg_value>
{%- endfor -%}
</tool_call>
{%- endfor -%}
{%- endif -%}
{%- endfor -%}"""

_RESULTS_AS_SENT: Final = """
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|observation|>{%- endif -%}
<tool_response>{{ text(m.content) }}</tool_response>"""

# The first result of a row writes all of them: in the order of the calls before it where every
# result answers another call, else as they were sent.
_RESULTS_BY_CALL: Final = """
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}
<|observation|>
{%- set row = namespace(results=[], ids=[], found=[], open=true) -%}
{%- for r in messages[loop.index0:] -%}
{%- if r.role != 'tool' -%}{%- set row.open = false -%}{%- endif -%}
{%- if row.open -%}
{%- set row.results = row.results + [r] -%}
{%- if r.tool_call_id and r.tool_call_id not in row.ids -%}
{%- set row.ids = row.ids + [r.tool_call_id] -%}
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if not loop.first -%}
{%- for call in messages[loop.index0 - 1].tool_calls or [] -%}
{%- for r in row.results if r.tool_call_id and r.tool_call_id == call.id -%}
{%- set row.found = row.found + [r] -%}
{%- endfor -%}
{%- endfor -%}
{%- endif -%}
{%- set known = row.ids | length == row.results | length
    and row.found | length == row.results | length -%}
{%- for r in row.found if known -%}<tool_response>{{ text(r.content) }}</tool_response>
{%- endfor -%}
{%- for r in row.results if not known -%}<tool_response>{{ text(r.content) }}</tool_response>
{%- endfor -%}
{%- endif -%}"""

_TOOLS_BLOCK: Final = """{%- if tools %}""" + _TOOLS + "{% endif -%}"

TEMPLATE: Final = (
    _TEXT
    + """
{%- set thinking = enable_thinking | default(true) -%}
[gMASK]<sop>
{%- if thinking -%}
<|system|>Reasoning Effort: {{ 'High' if reasoning_effort | default('max') == 'high' else 'Max' }}
{%- endif -%}
"""
    + _TOOLS_BLOCK
    + _MESSAGES.replace("RESULTS", _RESULTS_AS_SENT.strip())
    + """
{%- if add_generation_prompt -%}
<|assistant|><think>{{ '' if thinking else '</think>' }}
{%- endif -%}
"""
)

# It has no switch: the model always thinks unless the prompt closes its reasoning.
TEMPLATE_53: Final = (
    _TEXT
    + """
[gMASK]<sop><|system|>Reasoning Effort: {{
    {'low': 'Low', 'high': 'High'}.get(reasoning_effort | default('max'), 'Max') }}
"""
    + _TOOLS_BLOCK
    + _MESSAGES.replace("RESULTS", _RESULTS_BY_CALL.strip())
    + """
{%- if add_generation_prompt -%}<|assistant|><think>{%- endif -%}
"""
)

_VERSION: Final = re.compile(r"glm[-_ .]?5(?:[-_.](\d+))?(?!\d)", re.IGNORECASE)
# How far above the model's folder its name may stand: a cache keeps it beside a hash.
_NAMES: Final = 4


def is_53(folder: Path) -> bool:
    """Whether a folder's name says GLM-5.3. Nothing else tells it from 5.2: configs are equal."""
    for name in reversed(folder.parts[-_NAMES:]):
        versions = [match[1] for match in _VERSION.finditer(name) if match[1]]
        if versions:
            return versions[-1] == "3"
    return False


def builtin_template(folder: Path) -> str:
    """The template of the model in this folder."""
    return TEMPLATE_53 if is_53(folder) else TEMPLATE
