"""The chat format of GLM-5.2 as a jinja2 template, for containers that ship none.

For: `glm_moe_dsa`, whose published int4 containers often lack chat_template.jinja. A template in
the model folder always wins. Variables besides `messages`, `tools` and `add_generation_prompt`:
`enable_thinking` (default true), `reasoning_effort` (`high`, anything else means max) and
`clear_thinking` (default true: reasoning before the last user message is left out). Reasoning of
earlier turns is read from `reasoning_content`. Thread rule: a constant.
"""

from __future__ import annotations

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
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|observation|>{%- endif -%}
<tool_response>{{ text(m.content) }}</tool_response>
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

TEMPLATE: Final = (
    _TEXT
    + """
{%- set thinking = enable_thinking | default(true) -%}
[gMASK]<sop>
{%- if thinking -%}
<|system|>Reasoning Effort: {{ 'High' if reasoning_effort | default('max') == 'high' else 'Max' }}
{%- endif -%}
{%- if tools %}"""
    + _TOOLS
    + "{% endif -%}"
    + _MESSAGES
    + """
{%- if add_generation_prompt -%}
<|assistant|><think>{{ '' if thinking else '</think>' }}
{%- endif -%}
"""
)
