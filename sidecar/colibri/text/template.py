"""Rendering a conversation with the model's own chat template, in a sandbox with limits.

For: the HTTP side, once per request. The template is a downloaded program: it runs in jinja2's
immutable sandbox, and loops, text sizes and time are bounded, so that a hostile or broken one costs
a named error and never the server. Content goes in guarded (`tokenizer.Guard`). Not for: choosing
what the messages mean (reasoning, tools), which the API side has decided before. Thread rule: a
template is immutable and may render in several threads at once; limits are kept per rendering.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox
from jinja2.parser import Parser

from colibri.errors import ModelError, RequestError
from colibri.text.tokenizer import Guard, Tokenizer
from colibri.text.volatile import stable_message

MAX_SOURCE_CHARS: Final = 1 << 20
_MAX_STEPS: Final = 1_000_000  # loop turns, calls and joins of one rendering
_MAX_SECONDS: Final = 5.0
_MAX_NUMBER: Final = 1 << 62
_MAX_DEPTH: Final = 64
_THINK_START, _THINK_END = "<think>", "</think>"
# Text that a template may build beyond what it was given: far above any real prompt's own words.
_MAX_EXTRA_CHARS: Final = 4 << 20
_MAX_GROWTH: Final = 8
_MAX_REWRITES: Final = 4  # how often one character may pass through macros and blocks
_WIDE_FORMAT: Final = re.compile(r"\d{4}|\{[^{}]*\{|%[^a-zA-Z%]*\*")
_PADDING_METHODS: Final = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_REMOVED_FILTERS: Final = ("center", "format", "pprint", "random", "wordwrap", "xmlattr", "urlize")


class TemplateRefusal(RequestError):
    """The template itself rejected the conversation, in its own words (for example: roles must
    alternate).
    """


class _LimitError(Exception):
    """A limit of this module was passed; never leaves it."""


@dataclass(slots=True)
class _Limits:
    """What one rendering may still spend."""

    chars: int
    steps: int = field(default_factory=lambda: _MAX_STEPS)
    written: int = 0
    deadline: float = field(default_factory=lambda: time.monotonic() + _MAX_SECONDS)

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise _LimitError(f"it takes more than {_MAX_STEPS:,} steps")
        if time.monotonic() > self.deadline:
            raise _LimitError(f"it takes longer than {_MAX_SECONDS:g} seconds")

    def write(self, length: int) -> None:
        """Charges text that is put out, be it into the prompt or into a block or macro."""
        self.written += length
        if self.written > _MAX_REWRITES * self.chars:
            raise _LimitError(f"it writes more than {_MAX_REWRITES * self.chars:,} characters")

    def text(self, length: int) -> None:
        """Checks the size of one text that is being built."""
        self.step()
        if length > self.chars:
            raise _LimitError(
                f"it builds a text of {length:,} characters, more than {self.chars:,}"
            )


_limits: ContextVar[_Limits] = ContextVar("colibri_template_limits")


class _Counted:
    """An iterable of a `for` loop that pays for every turn."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __iter__(self) -> Iterator[Any]:
        limits = _limits.get()
        for item in self._inner:
            limits.step()
            yield item

    def __len__(self) -> int:
        return len(self._inner)  # loop.length asks only for what has one


class _LimitedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, with the operations that can explode taken under the limits."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = Parser(self, source, name, filename).parse()
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = _filter_node("colibri_counted", loop.iter, [])
        for output in tree.find_all(jinja2.nodes.Output):
            output.nodes = [_written_node(node) for node in output.nodes]
        for parent in list(tree.find_all(jinja2.nodes.Node)):
            _replace_concat(parent)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        limits = _limits.get()
        limits.step()
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, str | bytes | list | tuple) and isinstance(times, int):
                    limits.text(len(sized) * max(times, 0))
        elif (
            operator == "+"
            and isinstance(left, str | list | tuple)
            and isinstance(right, str | list | tuple)
        ):
            limits.text(len(left) + len(right))
        elif operator == "**" and (not isinstance(right, int | float) or abs(right) > 64):  # noqa: PLR2004
            raise _LimitError("it computes a power with an exponent above 64")
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) > _MAX_NUMBER:
            raise _LimitError("it computes a number above 2**62")
        return result

    def wrap_str_format(self, value: Any) -> Any:
        """jinja2 replaces `str.format` when a template takes it; the format is checked then."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def call(self, context: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        limits = _limits.get()
        limits.step()
        owner, method = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        if isinstance(owner, str):
            _check_method(limits, owner, method, args, kwargs)
        return super().call(context, obj, *args, **kwargs)


def _check_method(
    limits: _Limits, owner: str, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuses the string methods whose result is not bounded by what goes in."""
    numbers = [value for value in (*args, *kwargs.values()) if isinstance(value, int)]
    if method in _PADDING_METHODS:
        limits.text(len(owner) + max(numbers, default=8) * (owner.count("\t") + 1))
    elif (
        method == "replace"
        and len(args) > 1
        and isinstance(args[0], str)
        and isinstance(args[1], str)
    ):
        limits.text(len(owner) + owner.count(args[0]) * max(len(args[1]) - len(args[0]), 0))
    elif method == "join" and args and isinstance(args[0], list | tuple):
        limits.text(
            sum(len(item) for item in args[0] if isinstance(item, str)) + len(owner) * len(args[0])
        )


def _check_format(text: str) -> None:
    """Refuses formats whose width is large, or comes from a value."""
    if _WIDE_FORMAT.search(text):
        raise _LimitError("it formats text wider than 999, or as wide as a value says")


def _written_node(node: jinja2.nodes.Node) -> jinja2.nodes.Filter:
    """An expression or piece of template text that pays for what it puts out."""
    if isinstance(node, jinja2.nodes.TemplateData):
        const = jinja2.nodes.Const(node.data, lineno=node.lineno)
        const.environment = node.environment
        node = const
    return _filter_node("colibri_written", node, [])


def _filter_node(
    name: str, node: jinja2.nodes.Node, args: list[jinja2.nodes.Expr]
) -> jinja2.nodes.Filter:
    result = jinja2.nodes.Filter(node, name, args, [], None, None, lineno=node.lineno)
    result.environment = node.environment
    return result


def _replace_concat(parent: jinja2.nodes.Node) -> None:
    """Turns every `a ~ b` below a node into a filter that checks the size."""
    for key in parent.fields:
        value = getattr(parent, key)
        if isinstance(value, jinja2.nodes.Concat):
            setattr(parent, key, _filter_node("colibri_concat", value.nodes[0], value.nodes[1:]))
        elif isinstance(value, list):
            for at, item in enumerate(value):
                if isinstance(item, jinja2.nodes.Concat):
                    value[at] = _filter_node("colibri_concat", item.nodes[0], item.nodes[1:])


def _counted(value: Iterable[Any]) -> Any:
    return (
        _Counted(value)
        if isinstance(value, Iterable) and not isinstance(value, jinja2.Undefined)
        else value
    )


def _written(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    _limits.get().write(len(text))
    return text


def _concat(first: Any, *rest: Any) -> str:
    parts = [first if isinstance(first, str) else str(first)]
    parts += [item if isinstance(item, str) else str(item) for item in rest]
    _limits.get().text(sum(map(len, parts)))
    return "".join(parts)


def _limited_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """A built-in filter that joins, repeats or pads: its result is measured, its numbers are
    bounded.
    """

    def limited(*args: Any, **kwargs: Any) -> Any:
        limits = _limits.get()
        for value in (*args, *kwargs.values()):
            if isinstance(value, int) and not isinstance(value, bool) and abs(value) > limits.chars:
                raise _LimitError(f"it asks for {value} characters or items")
        result = function(*args, **kwargs)
        limits.text(len(result) if isinstance(result, str) else 0)
        return result

    for name in ("jinja_pass_arg",):
        if hasattr(function, name):
            setattr(limited, name, getattr(function, name))
    return limited


def _replace_filter(value: Any, old: str, new: str, count: int | None = None) -> str:
    text = str(value)
    times = text.count(old) if count is None else min(count, text.count(old))
    _limits.get().text(len(text) + times * max(len(new) - len(old), 0))
    return text.replace(old, new, -1 if count is None else count)


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks the answer for training; here it renders its
    body.
    """

    tags: Final = {"generation"}  # type: ignore[misc]

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the templates expect it: nothing escaped for HTML, non-ASCII kept."""
    if isinstance(indent, int) and indent > 16:  # noqa: PLR2004
        raise _LimitError(f"it indents JSON by {indent}")
    text = json.dumps(
        value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    _limits.get().text(len(text))
    if ensure_ascii:
        # Guards must stay what they are, or they would show up as escapes in the prompt.
        text = "".join(
            char if char.isascii() or "\ufdd0" <= char <= "\ufdef" else json.dumps(char)[1:-1]
            for char in text
        )
    return text


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 100:  # noqa: PLR2004
        raise _LimitError("its date pattern is longer than 100 characters")
    return datetime.now().astimezone().strftime(pattern)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusal(
        f"The model's chat template rejects this conversation: {str(message)[:500]}.",
        param="messages",
        code="template_rejected",
    )


def _environment() -> _LimitedEnvironment:
    environment = _LimitedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    for name in _REMOVED_FILTERS:
        environment.filters.pop(name, None)
    for name in (
        "join",
        "indent",
        "batch",
        "slice",
        "string",
        "list",
        "sum",
        "tojson",
        "escape",
        "e",
        "safe",
    ):
        environment.filters[name] = _limited_filter(environment.filters[name])
    environment.filters.update(
        tojson=_to_json,
        replace=_replace_filter,
        colibri_counted=_counted,
        colibri_concat=_concat,
        colibri_written=_written,
    )
    environment.globals.pop("lipsum", None)
    environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
    return environment


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt: `text` is what the model reads, `marked` the same with guards."""

    text: str
    marked: str
    guard: Guard


class ChatTemplate:
    """A compiled template. ModelError when it is broken; `where` names its file.

    `variables` are further names that it may use (`bos_token`, `eos_token`). `takes_tools`: whether
    it looks at tools at all; if not, `history.prepare` writes them into the messages.
    `variable_names` are the names that it reads and does not set itself.
    """

    def __init__(
        self,
        source: str,
        tokenizer: Tokenizer,
        *,
        where: str,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        if len(source) > MAX_SOURCE_CHARS:
            raise ModelError(
                f"the chat template holds {len(source):,} characters, expected at most "
                f"{MAX_SOURCE_CHARS:,}.",
                where=where,
            )
        self.where = where
        self.source = source
        self._tokenizer = tokenizer
        self._variables = dict(variables or {})
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            names = jinja2.meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"the chat template is broken in line {error.lineno}: {error.message}.",
                where=where,
                hint="Copy the template of the model again.",
            ) from None
        except Exception as error:  # whatever the compiler of a hostile template runs into
            raise ModelError(
                f"the chat template cannot be compiled: {_named(error)}.", where=where
            ) from None
        self.variable_names = frozenset(names)
        self.takes_tools = "tools" in names
        self._probe()

    def _probe(self) -> None:
        """Renders the smallest conversation, so that a template that never works fails at load."""
        try:
            self.render([{"role": "user", "content": "Hello"}])
        except RequestError as error:
            raise ModelError(
                f"the chat template cannot render one user message: {error.message}",
                where=self.where,
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """The prompt of a conversation. `role` of a message is trusted (the API has checked it),
        every other text in `messages`, `tools` and `variables` is content and can never become a
        control token.

        A system message loses what changes from request to request (`volatile`).
        RequestError naming `messages` when the template refuses or fails.
        """
        messages = [stable_message(message) for message in messages]
        told = variables or {}
        texts = [self.source, *_texts(messages), *_texts(tools or []), *_texts(told)]
        guard = Guard(self._tokenizer, texts)
        limits = _Limits(_MAX_EXTRA_CHARS + _MAX_GROWTH * sum(map(len, texts)))
        values: dict[str, Any] = {
            **self._variables,
            "messages": [_guarded_message(message, guard) for message in messages],
            "tools": _guarded(tools, guard) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **{name: _guarded(value, guard) for name, value in told.items()},
        }
        marked = self._run(values, limits)
        return Rendered(guard.strip(marked), marked, guard)

    @property
    def marker_ids(self) -> frozenset[int]:
        """The control tokens of its tokenizer."""
        return self._tokenizer.marker_ids

    def writes(self, *markers: str) -> bool:
        """Whether one of these markers is the model's own: the template writes or looks for it, or
        it is a control token.
        """
        return any(
            marker in self.source or marker in self._tokenizer.marker_texts for marker in markers
        )

    def check_length(self, rendered: Rendered, limit: int | None) -> None:
        """Raises TooManyTokensError for a prompt far beyond `limit` tokens."""
        self._tokenizer.check_length(rendered.text, limit)

    def encode(self, rendered: Rendered) -> list[int]:
        """Token ids of a rendered prompt."""
        return self._tokenizer.encode_prompt(rendered.marked, rendered.guard)

    def _run(self, values: Mapping[str, Any], limits: _Limits) -> str:
        pieces: list[str] = []
        length = 0
        token = _limits.set(limits)
        try:
            for piece in self._template.generate(values):
                length += len(piece)
                limits.text(length)
                pieces.append(piece)
        except (TemplateRefusal, KeyboardInterrupt):
            raise
        except Exception as error:  # a template is a program: it may raise anything
            raise RequestError(
                f"The model's chat template fails on this conversation: {_named(error)}.",
                param="messages",
                code="template_failed",
            ) from None
        finally:
            _limits.reset(token)
        return "".join(pieces)


def _named(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it calls itself without end"
    text = str(error)[:300] or type(error).__name__
    return text.removesuffix(".")


def _split_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Moves reasoning that a client left inside an assistant's content to `reasoning_content`.

    Templates find it by its markers, which guarded content no longer shows them. Reasoning ends at
    the first end marker, the answer begins behind the last one.
    """
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        return message
    if _THINK_END not in content or message.get("reasoning_content") is not None:
        return message
    reasoning = content.split(_THINK_END)[0].split(_THINK_START)[-1]
    answer = content.split(_THINK_END)[-1]
    return {**message, "reasoning_content": reasoning.strip(), "content": answer.lstrip("\n")}


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Every text in a JSON-like value, keys included."""
    if depth > _MAX_DEPTH:
        raise RequestError(
            f"A message or tool is nested deeper than {_MAX_DEPTH} levels.", param="messages"
        )
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, depth + 1)


def _guarded(value: Any, guard: Guard) -> Any:
    if isinstance(value, str):
        return guard.mark(value)
    if isinstance(value, Mapping):
        return {guard.mark(str(key)): _guarded(item, guard) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_guarded(item, guard) for item in value]
    return value


def _guarded_message(message: Mapping[str, Any], guard: Guard) -> dict[str, Any]:
    """The message with its content guarded; keys and role are the API's own words."""
    if guard.knows(_THINK_END):
        message = _split_reasoning(message)
    return {
        key: value if key == "role" else _guarded(value, guard) for key, value in message.items()
    }
