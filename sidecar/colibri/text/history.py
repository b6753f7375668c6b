"""A conversation with tools, made ready for the chat template.

For: the HTTP side, before `ChatTemplate.render`. `usable_tools` keeps what can be offered to a
model; `prepare` gives calls in earlier turns the shape that templates expect (arguments as an
object, no null content) and, for a template that knows nothing of tools, writes tools, calls and
results into the messages in the Hermes way, which `HERMES` parses. With `tool_choice: none` pass no
tools: earlier calls stay in the history all the same. Nothing here becomes a control token: what is
written into messages is content like the rest, and guarded as such. Not for: templates with tools,
which do the writing themselves. Thread rule: pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from colibri.errors import RequestError
from colibri.text.arguments import parse_json
from colibri.text.volatile import stable_message

# A tool that stands for those which a client has not loaded yet; there is nothing to call.
_PLACEHOLDER: Final = "DeferredToolPlaceholder"
_INTRODUCTION: Final = """\
# Tools

These tools can be called, one JSON description per line:
<tools>
{tools}
</tools>

To call a tool, write its name and arguments as one JSON object between these markers:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>
Several calls may follow each other. The results come back between <tool_response> markers."""


def usable_tools(tools: Iterable[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """(function tools in the shape of the OpenAI API, what was left out and why). Takes also bare
    descriptions with `input_schema`. Kinds of tools that are not known are left out.
    """
    usable: list[dict[str, Any]] = []
    left_out: list[str] = []
    names: set[str] = set()
    for number, tool in enumerate(tools):
        spec = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = spec.get("name") if isinstance(spec, Mapping) else None
        bare = isinstance(tool, Mapping) and "input_schema" in tool
        kind = tool.get("type", "function") if isinstance(tool, Mapping) else None
        if kind not in ("function", "custom") or (kind == "custom" and not bare):
            left_out.append(f"tools[{number}] is of type {str(kind)[:40]!r}")
        elif not isinstance(spec, Mapping) or not isinstance(name, str) or not name:
            left_out.append(f"tools[{number}] has no name")
        elif name in names:
            left_out.append(f"tools[{number}] repeats the name {name[:64]!r}")
        elif name != _PLACEHOLDER:
            names.add(name)
            usable.append({"type": "function", "function": _function(spec, name)})
    return usable, left_out


def _function(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name}
    if isinstance(spec.get("description"), str):
        described["description"] = spec["description"]
    schema = spec.get("parameters", spec.get("input_schema"))
    described["parameters"] = schema if isinstance(schema, Mapping) else _NO_PARAMETERS
    return described


_NO_PARAMETERS: Final = {"type": "object", "properties": {}}


def prepare(
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    *,
    template_takes_tools: bool,
) -> tuple[list[dict[str, Any]], list[Mapping[str, Any]]]:
    """(messages, tools) for `ChatTemplate.render`. No message vanishes.

    RequestError for what is nested too deeply to be written.
    """
    # Here and not only in the template: tools may come to stand before a billing line.
    shaped = [_shaped(stable_message(message)) for message in named(messages)]
    if template_takes_tools:
        return shaped, list(tools)
    written = _written(shaped)
    if tools:
        block = _INTRODUCTION.format(tools="\n".join(map(_line, tools)))
        written = _with_block(written, block)
    return written, []


def arguments_object(arguments: Any) -> dict[str, Any]:
    """Arguments of a call in the history as an object. What is none is kept as a text under
    `arguments`, so that nothing is lost and no template fails; empty ones are an empty object.
    """
    value = arguments
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            value = parse_json(arguments)
        except ValueError:
            return {"arguments": arguments}
    if isinstance(value, Mapping):
        return dict(value)
    return {} if value is None else {"arguments": value}


def _shaped(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its calls as templates read them, and content that is not null."""
    shaped = dict(message)
    if shaped.get("content") is None:
        shaped["content"] = ""
    calls = shaped.get("tool_calls")
    if not isinstance(calls, list):
        return shaped
    shaped["tool_calls"] = []
    for call in calls:
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            arguments = arguments_object(function.get("arguments"))
            shaped["tool_calls"].append({**call, "function": {**function, "arguments": arguments}})
    return shaped


def named(messages: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages; results with the name of the tool that was called, which some templates
    write.
    """
    names: dict[str, str] = {}
    result: list[Mapping[str, Any]] = []
    for message in messages:
        for call in message.get("tool_calls") or []:
            function = call.get("function") if isinstance(call, Mapping) else None
            if isinstance(function, Mapping) and isinstance(call.get("id"), str):
                names[call["id"]] = str(function.get("name"))
        name = names.get(message.get("tool_call_id") or "")
        if message.get("role") == "tool" and not message.get("name") and name is not None:
            result.append({**message, "name": name})
        else:
            result.append(message)
    return result


# ---- for templates without tools -----------------------------------------------------------------


def _line(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise RequestError(
            "A tool, or the arguments of a call, are nested too deeply.", param="messages"
        ) from None


def _text(content: Any) -> str:
    """The text of a content: itself, or its text parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return ""


def _written(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Calls and results as text of assistant and user messages."""
    result: list[dict[str, Any]] = []
    follows_result = False
    for message in messages:
        is_result = message.get("role") == "tool"
        if is_result:
            text = f"<tool_response>\n{_text(message.get('content'))}\n</tool_response>"
            if follows_result:
                result[-1]["content"] += "\n" + text
            else:
                result.append({"role": "user", "content": text})
        elif message.get("tool_calls"):
            kept = {key: value for key, value in message.items() if key != "tool_calls"}
            pieces = [_text(message.get("content"))] if _text(message.get("content")) else []
            pieces += [_call(call["function"]) for call in message["tool_calls"]]
            result.append({**kept, "content": "\n".join(pieces)})
        else:
            result.append(dict(message))
        follows_result = is_result
    return result


def _call(function: Mapping[str, Any]) -> str:
    call = {"name": function.get("name"), "arguments": function["arguments"]}
    return f"<tool_call>\n{_line(call)}\n</tool_call>"


def _with_block(messages: list[dict[str, Any]], block: str) -> list[dict[str, Any]]:
    """The tools stand at the very beginning: they change seldom, so what was computed for them
    serves every conversation with the same tools.
    """
    if messages and messages[0].get("role") == "system":
        own = _text(messages[0].get("content"))
        first = {**messages[0], "content": f"{block}\n\n{own}" if own else block}
        return [first, *messages[1:]]
    return [{"role": "system", "content": block}, *messages]
