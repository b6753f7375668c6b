"""`/api/atlas`: what the model's experts are for, and measuring it with the running engine.

For: the dashboard's Atlas, and `coli atlas run`, which sends its prompts one by one. Not for:
making sense of counts (`models.atlas.analysis`). A measured prompt waits for its turn like every
request; it is answered without drafts, and neither use counts nor stored context know of it
afterwards.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from flask import Blueprint, Response, request

from colibri import paths
from colibri.api import native
from colibri.api.body import decode, read
from colibri.api.connection import client_gone
from colibri.api.describe import GENERATION, describe
from colibri.api.follow import follow
from colibri.api.replies import json_response
from colibri.api.services import Services
from colibri.engine.protocol import Done, EngineInfo
from colibri.errors import ClientGoneError, NotFoundError, RequestError
from colibri.models.atlas import file

_MOST_TOKENS: Final = 4096


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt to measure: `text` as a person writes it; `max_tokens` of an answer at most."""

    text: str
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=_MOST_TOKENS)] = 1


class AtlasBody(msgspec.Struct, frozen=True, kw_only=True):
    """The atlas as columns, see docs/dashboard.md."""

    version: int
    model: str
    categories: list[str]
    cols: int
    layer: list[int]
    expert: list[int]
    top: list[int]
    specialist: list[bool]
    entropy: list[float]
    affinity: list[int]
    tokens: list[int] | None
    measurement: file.Figures | None


class MeasuredBody(msgspec.Struct, frozen=True, kw_only=True):
    """How often each expert was asked for; base64 of little-endian u32, row by row."""

    layers: list[int]
    cols: int
    per_token: int
    prompt: str
    answer: str


def blueprint(services: Services) -> Blueprint:
    """The routes."""
    routes = Blueprint("atlas", __name__)
    atlas_file = file.AtlasFile()

    @routes.get("/api/atlas")
    @describe("What the model's experts are for.", answer=AtlasBody, errors=(404, 422))
    def atlas() -> Response:
        loaded, info = services.loader.require(), services.engine.status().info
        _check_experts(info)
        if loaded.folder is None:
            raise file.AtlasMissingError("This server has no folder of a model.", [])
        columns, tag = atlas_file.get(
            loaded.folder, loaded.settings.state_dir, _commands(loaded.folder)
        )
        cols = max(columns.expert, default=-1) + 1
        if info is not None and info.experts is not None:
            cols = info.experts.cols
            file.check_shape(columns, info.experts.layers, cols, loaded.model.id)
        response = json_response(file.answer(columns, loaded.model.id, cols))
        response.headers["Cache-Control"] = "no-cache"
        response.set_etag(f"{tag}-{cols}")
        response.make_conditional(request)
        return response

    @routes.post("/api/atlas/measure")
    @describe(
        "Which experts a prompt and its answer are routed to.",
        request=MeasureRequest,
        answer=MeasuredBody,
        errors=GENERATION,
    )
    def measure_prompt() -> Response:
        asked = decode(read(request), MeasureRequest)
        return json_response(_measured(asked, services))

    return routes


def _commands(folder: Path) -> list[str]:
    """What makes an atlas of the model in a folder."""
    installed = folder.parent == paths.models_dir() or folder == paths.starter_dir()
    name = shlex.quote(folder.name if installed else str(folder))
    return [f"coli atlas run {name}", f"coli atlas analyze {name} --web"]


def _check_experts(info: EngineInfo | None) -> None:
    if info is not None and info.experts is None:
        raise NotFoundError("This model is dense: it has no experts.", code="atlas_no_experts")


def _measured(asked: MeasureRequest, services: Services) -> dict[str, Any]:
    from colibri.models.atlas import measure  # noqa: PLC0415 - heavy

    services.context()
    _check_experts(services.engine.status().info)
    if not asked.text.strip():
        raise RequestError("'text' must not be empty.", param="text")
    model = services.model
    tokens, first = measure.tokens_of(model, asked.text)
    sampling = native.Sampling(
        max_tokens=asked.max_tokens,
        temperature=0.0,
        seed=1,
        stops=model.chat_stops,
        ignore_leading_stop=True,
    )
    generation = native.generation(tokens, sampling, services, subject="text")
    generation = msgspec.structs.replace(generation, count_from=first)
    gone = client_gone(request.environ)
    for event in follow(services.scheduler.admit(generation, gone), gone):
        if isinstance(event, Done):
            if event.finish_reason == "cancelled":
                raise ClientGoneError("the measurement was cancelled.")
            return measure.to_wire(measure.measured(event.routing))
    raise AssertionError("a generation ends with Done or raises")
