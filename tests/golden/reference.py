"""What an independent implementation makes of the conversations, and its vocabularies.

    python -m tests.golden.reference OUT

Needs the PyPI packages tml-renderers and torch (`make test-golden` makes an environment with them)
and nothing of ours. Writes OUT/reference.json, `{variant: {conversation: {"text", "ids"}}}`, and
OUT/glm.json and OUT/inkling.json, the vocabularies in the format of the tokenizers library.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - the extension needs its libraries loaded first
from tml_renderers import chat, renderers, v0
from tml_renderers import tokenizers as vocabularies

from tests.golden.conversations import CONVERSATIONS, TOOLS, VARIANTS, Message

KIND = chat.AuthorKind
# Ordinary tokens; control tokens follow them.
ORDINARY = {"glm": 154_820, "inkling": 199_998}
SPLIT = {
    "glm": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "inkling": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


def message(kind: Any, content: Any, name: str | None = None) -> Any:
    author = chat.Author(kind, name) if name else chat.Author(kind)
    return chat.Message(content=content, author=author)


def call_content(function: Message) -> Any:
    arguments = [
        chat.ToolArg(key, json.dumps(value, ensure_ascii=False))
        for key, value in function["arguments"].items()
    ]
    return chat.InvokeTool(chat.StructuredToolCall(function["name"], arguments))


def converted(messages: list[Message], tools: bool, inkling: bool) -> list[Any]:
    """The conversation in the package's own types."""
    result = []
    if tools:
        specs = [
            chat.ToolSpecJson("function", f["name"], f["description"], f["parameters"])
            for f in (tool["function"] for tool in TOOLS)
        ]
        declared = chat.ToolDeclareJson(specs)
        result.append(message(KIND.System, declared, "tool_declare" if inkling else None))
    for number, turn in enumerate(messages):
        if turn["role"] in ("system", "user"):
            kind = KIND.System if turn["role"] == "system" else KIND.User
            result.append(message(kind, chat.Text(turn["content"])))
        elif turn["role"] == "tool":
            result.append(message(KIND.Tool, chat.Text(turn["content"]), turn["name"]))
        else:
            if turn.get("reasoning_content"):
                result.append(message(KIND.Model, chat.Thinking(turn["reasoning_content"])))
            if turn["content"]:
                result.append(message(KIND.Model, chat.Text(turn["content"])))
            for item in turn.get("tool_calls", ()):
                result.append(message(KIND.Model, call_content(item["function"])))
            following = messages[number + 1]["role"] if number + 1 < len(messages) else ""
            if inkling and following != "assistant":
                result.append(message(KIND.Model, chat.ModelEndSampling()))
    return result


def ids_of(spans: Any) -> list[int]:
    ids: list[int] = []
    for span in spans:
        inner = span if hasattr(span, "tokens") else getattr(span, "span", span)
        ids += list(inner.int_tokens if hasattr(inner, "int_tokens") else inner.tokens)
    return ids


def spelled(name: str) -> str:
    """A control token's text; the package leaves the signs of some out."""
    return name if name[0] in "<[/" else f"<|{name}|>"


def text_of(vocabulary: Any, ids: list[int]) -> str:
    text, run = "", []
    for token in ids:
        if vocabulary.is_special_token(token):
            text += vocabulary.decode(run) if run else ""
            text += spelled(vocabulary.decode_special(token))
            run = []
        else:
            run.append(token)
    return text + (vocabulary.decode(run) if run else "")


def prompts() -> dict[str, dict[str, Message]]:
    """Text and token ids of every conversation in every variant."""
    found: dict[str, dict[str, Message]] = {}
    for variant, (kind, told) in VARIANTS.items():
        effort = told.get("reasoning_effort")
        make: dict[str, Callable[[], Any]] = {
            "glm52": lambda e=effort, t=told: renderers.Glm52(
                e or "max", t.get("clear_thinking", True)
            ),
            "glm53": lambda e=effort: renderers.Glm53(e or "max"),
            "inkling": lambda: v0.Renderer(vocabularies.O200kBaseChatTokenizer()),
        }
        renderer = make[kind]()
        found[variant] = {}
        for name, (messages, tools) in CONVERSATIONS.items():
            turns = converted(messages, tools, kind == "inkling")
            if kind == "inkling" and effort is not None:
                spans, _ = renderer.render_for_completion_with_effort(turns, effort)
            else:
                spans, _ = renderer.render_for_completion(turns)
            ids = ids_of(spans)
            found[variant][name] = {"text": text_of(renderer.tokenizer, ids), "ids": ids}
    return found


def letters() -> dict[int, str]:
    """The byte-level alphabet."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }


def vocabulary_file(vocabulary: Any, kind: str) -> Message:
    """A tokenizer.json. A merge is every way to cut a token into two others; the token's rank
    orders them.
    """
    ranks: dict[bytes, int] = {}
    for token in range(ORDINARY[kind]):
        try:
            ranks.setdefault(bytes(vocabulary.decode_bytes([token])), token)
        except Exception:  # noqa: S112 - an id that stands for nothing
            continue
    sign = letters()
    shown = {data: "".join(sign[byte] for byte in data) for data in ranks}
    merges = []
    for data, rank in ranks.items():
        cuts = [(data[:at], data[at:]) for at in range(1, len(data))]
        pairs = [(a, b) for a, b in cuts if a in ranks and b in ranks]
        pairs.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(rank, number, shown[a], shown[b]) for number, (a, b) in enumerate(pairs)]
    merges.sort()
    specials = {spelled(t): vocabulary.encode_special(t) for t in vocabulary.special_tokens()}
    added = [
        {
            "id": token, "content": text, "special": True, "normalized": False,
            "single_word": False, "lstrip": False, "rstrip": False,
        }
        for text, token in sorted(specials.items(), key=lambda item: item[1])
    ]  # fmt: skip
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
    }  # fmt: skip
    split = {
        "type": "Split", "pattern": {"Regex": SPLIT[kind]}, "behavior": "Isolated", "invert": False,
    }  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {shown[data]: rank for data, rank in ranks.items()} | specials,
            "merges": [[a, b] for _, _, a, b in merges],
        },
    }


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "reference.json").write_text(json.dumps(prompts(), ensure_ascii=False, indent=1))
    for kind, vocabulary in (
        ("glm", vocabularies.GlmTokenizer()),
        ("inkling", vocabularies.O200kBaseChatTokenizer()),
    ):
        (out / f"{kind}.json").write_text(json.dumps(vocabulary_file(vocabulary, kind)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
