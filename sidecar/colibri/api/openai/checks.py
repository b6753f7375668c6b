"""The rules about fields of a request: their ranges, and those that we cannot honour.

For: the handlers of this dialect. A field that would change the answer and is not supported is
refused by its name, so that no one believes in a bound that does not hold. Not for: the
conversation (`turns`), tokens or limits of the model. Thread rule: pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from colibri.api.native import JsonFormat, ToolChoice, is_begun
from colibri.api.openai.schemas import ChatRequest, CompletionRequest, _Common
from colibri.errors import RequestError

MAX_STOPS = 4
MAX_TEMPERATURE = 2.0
_SEED_BITS = 64
_MAX_SHOWN = 40


def refuse(param: str, sentence: str) -> RequestError:
    """The error for a field that has a meaning we do not offer."""
    return RequestError(sentence, param=param, code="unsupported_parameter")


def _range(param: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise RequestError(
            f"'{param}' must be between {low:g} and {high:g}, not {value:g}.", param=param
        )


def check_common(request: _Common) -> None:
    """Raises RequestError naming the first common field that is out of range or unsupported."""
    _range("temperature", request.temperature, 0, MAX_TEMPERATURE)
    _range("top_p", request.top_p, 0, 1)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise RequestError("'max_tokens' must be at least 1.", param="max_tokens")
    if request.seed is not None and not -(1 << _SEED_BITS - 1) <= request.seed < 1 << _SEED_BITS:
        raise RequestError("'seed' must be an integer of 64 bits.", param="seed")
    if request.n not in (None, 1):
        raise refuse("n", "'n' must be 1: this server makes one answer per request.")
    for param in ("frequency_penalty", "presence_penalty"):
        if getattr(request, param):
            raise refuse(param, f"'{param}' is not supported; leave it out or send 0.")
    if request.logit_bias:
        raise refuse("logit_bias", "'logit_bias' is not supported; leave it out.")
    stop_list(request)


def stop_list(request: _Common) -> tuple[str, ...]:
    """The stop strings of a request. Raises RequestError for too many or empty ones."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if len(stops) > MAX_STOPS:
        raise RequestError(
            f"'stop' may hold at most {MAX_STOPS} strings, not {len(stops)}.", param="stop"
        )
    if "" in stops:
        raise RequestError("'stop' must not hold an empty string.", param="stop")
    return tuple(stops)


def check_chat(request: ChatRequest) -> None:
    """Raises RequestError naming the first field of a chat request that we cannot honour."""
    check_common(request)
    if request.max_completion_tokens is not None and request.max_completion_tokens < 1:
        raise RequestError(
            "'max_completion_tokens' must be at least 1.", param="max_completion_tokens"
        )
    if request.logprobs:
        raise refuse("logprobs", "'logprobs' is not supported; leave it out or send false.")
    if request.top_logprobs:
        raise refuse("top_logprobs", "'top_logprobs' is not supported; leave it out.")
    if request.functions:
        raise refuse("functions", "'functions' is not supported; send 'tools', its newer form.")
    if request.audio or set(request.modalities or ()) - {"text"}:
        param = "audio" if request.audio else "modalities"
        raise refuse(param, f"'{param}': this server answers with text only.")


def check_completion(request: CompletionRequest) -> None:
    """Raises RequestError naming the first field of a completion that we cannot honour."""
    check_common(request)
    if request.suffix:
        raise refuse("suffix", "'suffix' is not supported: the model has no infill tokens.")
    if request.echo:
        raise refuse("echo", "'echo' is not supported; leave it out or send false.")
    if request.best_of not in (None, 1):
        raise refuse("best_of", "'best_of' must be 1: this server makes one answer per request.")
    if request.logprobs is not None:
        raise refuse("logprobs", "'logprobs' is not supported; leave it out.")


# ---- what the answer has to look like


def json_format(request: ChatRequest) -> JsonFormat | None:
    """The form that `response_format` asks for; None for text. Raises RequestError."""
    wanted = request.response_format
    if wanted is None:
        return None
    kind = wanted.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return JsonFormat()
    if kind == "json_schema":
        return JsonFormat(schema=_schema(wanted.get("json_schema")))
    shown = repr(kind)[:_MAX_SHOWN]
    raise refuse(
        "response_format",
        f"'response_format.type' must be text, json_object or json_schema, not {shown}.",
    )


def goes_on(
    request: ChatRequest, messages: Sequence[Mapping[str, Any]], *, can_begin: bool
) -> bool:
    """Whether the last message is the beginning of the answer. Raises RequestError."""
    if not request.continue_final_message:
        return False
    param = "continue_final_message"
    if not can_begin:
        raise refuse(param, f"'{param}' is not supported: this model cannot go on with a text.")
    if not is_begun(messages):
        sentence = "the last of several messages must be the assistant's, with text alone"
        raise RequestError(f"With '{param}' {sentence}.", param=param)
    if json_format(request) is not None:
        raise refuse(param, f"'{param}' cannot be had together with a 'response_format'.")
    return True


def _schema(described: Any) -> Any:
    place = "response_format.json_schema"
    if not isinstance(described, Mapping):
        raise RequestError(f"'{place}' must be an object with a schema.", param=place)
    schema = described.get("schema")
    if not isinstance(schema, Mapping):
        raise RequestError(
            f"'{place}.schema' must be a JSON schema, an object.", param=f"{place}.schema"
        )
    return schema


# ---- tools


def offered_tools(request: ChatRequest) -> tuple[list[Any], ToolChoice]:
    """(tools that the model may be shown, which calls the answer may hold). Raises RequestError."""
    tools = request.tools or []
    parallel = request.parallel_tool_calls is not False
    choice = request.tool_choice
    if choice is None:
        return tools, ToolChoice(parallel=parallel)
    if isinstance(choice, str):
        return tools, ToolChoice(mode=_mode(choice, "tool_choice"), parallel=parallel)
    kind = choice.get("type", "function")
    if kind == "function":
        # Either `{"function": {"name": ...}}` or, as in the newer API, the name beside the type.
        inner = choice.get("function", choice)
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(name, str) or not name:
            raise RequestError(
                "'tool_choice.function.name' must name a tool.", param="tool_choice.function.name"
            )
        return tools, ToolChoice(mode="required", name=name, parallel=parallel)
    if kind == "allowed_tools":
        return _allowed(tools, choice, parallel)
    raise refuse(
        "tool_choice",
        f"'tool_choice.type' must be function or allowed_tools, not {repr(kind)[:_MAX_SHOWN]}.",
    )


def _mode(word: Any, param: str) -> Any:
    if word in ("auto", "none", "required"):
        return word
    raise RequestError(
        f"'{param}' must be auto, none, required or a function, not {repr(word)[:_MAX_SHOWN]}.",
        param=param,
    )


def _allowed(
    tools: list[Any], choice: Mapping[str, Any], parallel: bool
) -> tuple[list[Any], ToolChoice]:
    """Of the tools those that `allowed_tools` lists; the others are not shown."""
    inner = choice.get("allowed_tools", choice)
    listed = inner.get("tools") if isinstance(inner, Mapping) else None
    if not isinstance(listed, list):
        raise RequestError(
            "'tool_choice.allowed_tools.tools' must be an array of tools.",
            param="tool_choice.allowed_tools.tools",
        )
    mode = _mode(inner.get("mode", "auto"), "tool_choice.allowed_tools.mode")
    names = {_tool_name(tool) for tool in listed}
    return [tool for tool in tools if _tool_name(tool) in names], ToolChoice(
        mode=mode, parallel=parallel
    )


def _tool_name(tool: Any) -> str | None:
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = inner.get("name") if isinstance(inner, Mapping) else None
    return name if isinstance(name, str) else None


# ---- reasoning


def thinking(request: ChatRequest) -> tuple[bool, str | None, int | None]:
    """(whether the model shall think first, the word for how much, most tokens of it).

    The model thinks only when asked. The plainest word wins: `enable_thinking`, then an effort,
    of which anything but none asks for it.
    """
    reasoning, options, named = request.reasoning, request.chat_template_kwargs, request.thinking
    effort = request.reasoning_effort
    if effort is None and reasoning is not None:
        effort = reasoning.effort
    if effort is None and options is not None:
        effort = options.reasoning_effort
    switches = [request.enable_thinking]
    if options is not None:
        switches += [options.enable_thinking, options.thinking]
    if named is not None and named.type is not None:
        switches.append(named.type != "disabled")
    if reasoning is not None:
        switches.append(reasoning.enabled)
    budgets = [
        None if named is None else named.budget_tokens,
        None if reasoning is None else reasoning.max_tokens,
    ]
    budget = next((number for number in budgets if number is not None and number > 0), None)
    wanted = effort not in (None, "none") or budget is not None
    switch = next((value for value in switches if value is not None), wanted)
    return switch, None if effort == "none" else effort, budget if switch else None
