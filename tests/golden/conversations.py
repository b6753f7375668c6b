"""Conversations whose prompts are compared with those of an independent implementation.

For: `reference` (run in an environment of its own), `check` and the test of the hashes. Messages
and tools as in the OpenAI format. Not for: refusals or hostile input. Imports nothing of ours, so
that the reference can use it.
"""

from __future__ import annotations

from typing import Any

Message = dict[str, Any]

# name: (format, variables of the template)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "glm52": ("glm52", {"enable_thinking": True}),
    "glm52_high": ("glm52", {"enable_thinking": True, "reasoning_effort": "high"}),
    "glm52_keep": ("glm52", {"enable_thinking": True, "clear_thinking": False}),
    "glm53": ("glm53", {}),
    "glm53_low": ("glm53", {"reasoning_effort": "low"}),
    "glm53_high": ("glm53", {"reasoning_effort": "high"}),
    "inkling": ("inkling", {}),
    "inkling_none": ("inkling", {"reasoning_effort": 0.0}),
    "inkling_low": ("inkling", {"reasoning_effort": 0.2}),
    "inkling_most": ("inkling", {"reasoning_effort": 0.99}),
}


def _tool(name: str, description: str, properties: Message, *required: str) -> Message:
    parameters: Message = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = list(required)
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


# Properties in alphabetical order: the reference sorts them, templates keep the client's order.
TOOLS = [
    _tool("clock", "Says what time it is", {}),
    _tool(
        "edit",
        "Ändert eine Datei — „vorsichtig“",
        {
            "lines": {"type": "array", "items": {"type": "integer"}},
            "options": {
                "type": "object",
                "properties": {"a": {"enum": ["x", "ÿ", None]}, "z": {"type": "boolean"}},
                "additionalProperties": False,
            },
            "path": {"type": "string", "description": "Wo, z. B. C:\\x"},
            "ratio": {"type": ["number", "null"]},
        },
        "path",
        "lines",
    ),
]


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def said(content: str, reasoning: str = "", *calls: Message) -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def call(number: int, name: str, **arguments: Any) -> Message:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def result(number: int, name: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number}", "name": name, "content": content}


EDIT = {
    "path": 'a "b"\\c\n</d> – 東京.txt',  # noqa: RUF001
    "lines": [1, 22, 333],
    "options": {"z": True, "a": None, "deep": {"x": [{}, []]}},
    "ratio": 0.5,
}

# name: (messages, whether tools are offered)
CONVERSATIONS: dict[str, tuple[list[Message], bool]] = {
    "short": ([user("Hello there")], False),
    "blanks": ([user("  two spaces \n\n and lines\t\n")], False),
    "unicode": ([user("naïve 你好 😀 👩‍👩‍👧 ﬁ Ω — 3.14159 100000 don't WE'VE")], False),
    "code": ([user("```py\ndef f(x):\n    return x != 1  # ok\n```\r\n")], False),
    "system": ([system("You are a clerk.\n\nBe exact."), user("What is 2 + 2?")], False),
    "markers": (
        [
            system("Write <|user|> and </think> as they are."),
            user("<tool_call>x<arg_key>k</arg_key></tool_call><|assistant|><think>[gMASK]<sop>"),
        ],
        False,
    ),
    "inkling markers": ([user("<|message_model|><|content_text|>x<|end_message|>")], False),
    "turns": (
        [user("One?"), said("One."), user("Two?"), said("Two.\n"), user("Three?")],
        False,
    ),
    "reasoned turns": (
        [
            system("Count."),
            user("One?"),
            said("One.", "It says one."),
            user("Two?"),
            said("Two.", "It says two.\nTwice."),
            user("Three?"),
        ],
        False,
    ),
    "tools": ([user("What time is it?")], True),
    "tools and system": ([system("Be kind."), user("Change the file.")], True),
    "call": (
        [user("Time?"), said("", "", call(1, "clock")), result(1, "clock", "12:00")],
        True,
    ),
    "reasoned call": (
        [
            user("Change it."),
            said("I change it.", "First I must look.", call(1, "edit", **EDIT)),
            result(1, "edit", "done: 3 lines\n\n"),
        ],
        True,
    ),
    "calls": (
        [
            user("Both."),
            said("", "Two tools.", call(1, "clock"), call(2, "edit", path="5", lines=[])),
            result(1, "clock", "12:00"),
            result(2, "edit", '{"ok": true, "text": "ä"}'),
        ],
        True,
    ),
    "run of calls": (
        [
            system("Go on until it is done."),
            user("Go."),
            said("", "One.", call(1, "clock")),
            result(1, "clock", "1"),
            said("Next.", "Two.", call(2, "edit", path="true", lines=[0], ratio=-1)),
            result(2, "edit", "2"),
            said("", "Three.", call(3, "clock")),
            result(3, "clock", ""),
        ],
        True,
    ),
    "after the calls": (
        [
            user("Time?"),
            said("", "I look.", call(1, "clock")),
            result(1, "clock", "12:00"),
            said("It is noon.", "Twelve is noon."),
            user("Thanks. And now?"),
        ],
        True,
    ),
    "system in the middle": (
        [system("First."), user("A"), said("B"), system("Second."), user("C")],
        False,
    ),
}
