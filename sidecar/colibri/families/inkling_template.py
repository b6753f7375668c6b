"""The chat format of Inkling as a jinja2 template, for containers that ship none.

For: the descriptor of that family. A template in the model folder always wins. Variables besides
`messages` and `tools`: `reasoning_effort`, a word or a number from 0 to 0.99; without it no line
tells an effort. There is no generation prompt: the model opens its messages itself. Reasoning of
earlier turns stays. A result of a tool stands behind the name of the tool that was called (`name`
of the message); `is_error` marks one that failed. Names of arguments are sorted, what is inside of
them is not. Thread rule: constants.
"""

from __future__ import annotations

from typing import Any, Final

_EFFORTS: Final = """
{%- set efforts = {'none': 0, 'minimal': 0, 'low': 0.2, 'medium': 0.7, 'high': 0.9,
    'xhigh': 0.99, 'max': 0.99} -%}
{%- set told = namespace(effort=none, done=false) -%}
{%- if reasoning_effort is defined -%}
{%- if reasoning_effort is number -%}
{%- set told.effort = (([[reasoning_effort, 0] | max, 0.99] | min) * 100) | round(0) / 100 -%}
{%- elif reasoning_effort is string -%}
{%- set told.effort = efforts.get(reasoning_effort, 0.9) -%}
{%- endif -%}
{%- endif -%}
{%- macro level() -%}
{%- if told.effort is number and not told.done -%}
<|message_system|><|content_text|>Thinking effort level: {{
    0 if told.effort == 0 else told.effort }}<|end_message|>
{%- endif -%}
{%- endmacro -%}"""

_PARTS: Final = """
{%- macro message(opening, content) -%}
{%- if content is string -%}{{ opening }}<|content_text|>{{ content }}<|end_message|>
{%- elif content is iterable -%}
{%- for item in content if item.type == 'text' -%}
{{ opening }}<|content_text|>{{ item.text }}<|end_message|>
{%- endfor -%}
{%- endif -%}
{%- endmacro -%}"""

_DECLARATION: Final = """
{%- if tools -%}
{%- set specs = namespace(all=[]) -%}
{%- for tool in tools -%}
{%- set f = tool.function if tool.function is defined else tool -%}
{%- set spec = namespace(value={'name': f.name, 'type': 'function'}) -%}
{%- if f.description is defined -%}
{%- set spec.value = dict(spec.value, description=f.description) -%}
{%- endif -%}
{%- if f.parameters is defined -%}
{%- set spec.value = dict(spec.value, parameters=f.parameters) -%}
{%- endif -%}
{%- set specs.all = specs.all + [spec.value] -%}
{%- endfor -%}
<|message_system|>tool_declare<|content_xml|>
{{- specs.all | tojson(sort_keys=true, separators=(',', ':')) }}<|end_message|>
{%- endif -%}"""

_MESSAGES: Final = """
{%- for m in messages -%}
{%- if m.role != 'system' and not told.done -%}
{{ level() }}{%- set told.done = true -%}
{%- endif -%}
{%- if m.role == 'system' -%}{{ message('<|message_system|>', m.content) }}
{%- elif m.role == 'user' -%}{{ message('<|message_user|>', m.content) }}
{%- elif m.role == 'tool' -%}
<|message_tool|>{{ m.name or '' }}
{{- '<|content_tool_error|>' if m.is_error else '<|content_text|>' -}}
{%- if m.content is string -%}{{ m.content }}
{%- else -%}
{%- for item in m.content if item.type == 'text' -%}{{ item.text }}{%- endfor -%}
{%- endif -%}
<|end_message|>
{%- elif m.role == 'assistant' -%}
{%- if m.reasoning_content -%}
<|message_model|><|content_thinking|>{{ m.reasoning_content }}<|end_message|>
{%- endif -%}
{%- if m.content or not (m.reasoning_content or m.tool_calls) -%}
{{ message('<|message_model|>', m.content) }}
{%- endif -%}
{%- for call in m.tool_calls or [] -%}
{%- set f = call.function if call.function is defined else call -%}
<|message_model|>{{ f.name }}<|content_invoke_tool_json|>{"name":
{{- f.name | tojson }},"args":
{{- dict(f.arguments | dictsort(true)) | tojson(separators=(',', ':')) }}}<|end_message|>
{%- endfor -%}
{%- if loop.last or messages[loop.index0 + 1].role != 'assistant' -%}
<|content_model_end_sampling|>
{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if not told.done -%}{{ level() }}{%- endif -%}"""

TEMPLATE: Final = _EFFORTS + _PARTS + _DECLARATION + _MESSAGES

# What the format's own template assumes when a request asks for reasoning and names no effort.
VARIABLES: Final[dict[str, Any]] = {"reasoning_effort": "high"}
