"""The text side of small models behind the API's collaborators, without an engine that computes.

For: fuzzing and tests of what happens to a request before it is admitted. `hermes` has a ChatML
template that knows no tools, `glm` the built-in template and all markers as control tokens; both
use the tests' own byte-level tokenizer. Thread rule: built once per process.
"""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

from colibri.api.services import Services
from colibri.models import served
from colibri.models.model import ModelText, open_text
from tests.models import files
from tests.support.fakeserver import FakeServer

CONTEXT = 100_000
GLM_MARKERS = (
    "[gMASK]", "<sop>", "<|system|>", "<|assistant|>", "<|endoftext|>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>",
)  # fmt: skip


@functools.cache
def text(name: str) -> ModelText:
    """The model's text, opened from a folder."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / name
        if name == "glm":
            files.text_files(folder, files.GLM, template=None)
            tokenizer = files.tokenizer(extra=GLM_MARKERS)
        else:
            files.text_files(folder, files.LLAMA)
            tokenizer = files.tokenizer(extra=("<tool_call>", "</tool_call>"))
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        return open_text(folder)


@functools.cache
def services(name: str) -> Services:
    """Collaborators of the handlers; the engine is scripted and loaded."""
    server = FakeServer(context=CONTEXT, model=served.from_text(text(name)))
    server.engine.start()
    server.engine.wait_ready(20)
    return server.services
