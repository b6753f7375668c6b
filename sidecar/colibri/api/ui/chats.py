"""`/api/chats` and `/api/presets`: the dashboard's conversations over HTTP.

For: the dashboard and scripts. Not for: storing (`colibri.chats`) or generating; the page asks
`/v1/chat/completions` and puts here what came.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

import msgspec
from flask import Blueprint, Response, request

from colibri.api.body import decode, read
from colibri.api.describe import POSITIVE, describe
from colibri.chats import ChatStore, ChatTree, Message, Preset, transfer
from colibri.chats.records import Chat, Hit, Part, Role
from colibri.errors import RequestError

_MOST_LISTED = 200


class _NewChat(msgspec.Struct):
    id: str | None = None
    title: str = ""
    settings: dict[str, Any] = {}
    pinned: bool = False


class _Change(msgspec.Struct):
    title: str | None = None
    settings: dict[str, Any] | None = None
    pinned: bool | None = None
    active: str | None = None
    revision: int | None = None


class _NewMessage(msgspec.Struct):
    role: Role
    parts: list[Part]
    parent: str | None = None
    meta: dict[str, Any] = {}
    active: bool = False


class _NewPreset(msgspec.Struct):
    name: str
    settings: dict[str, Any] = {}


class _ChatList(msgspec.Struct):
    chats: list[Chat]
    next: str | None
    total: int


class _HitList(msgspec.Struct):
    hits: list[dict[str, Any]]


class _Imported(msgspec.Struct):
    chats: list[Chat]
    renamed: dict[str, str]


class _Deleted(msgspec.Struct):
    deleted: list[str]


class _PresetList(msgspec.Struct):
    presets: list[Preset]


def json_answer(data: Any, status: int = 200) -> Response:
    response = Response(msgspec.json.encode(data), status, content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response


def number_argument(name: str, default: int, most: int) -> int:
    """A whole number of the query, at least 1 and cut to `most`. Raises RequestError."""
    text = request.args.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or int(text[:10]) < 1:
        raise RequestError(f"'{name}' must be a number from 1.", param=name)
    return min(int(text[:10]), most)


def _download(data: bytes, kind: str, title: str, ending: str) -> Response:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.")[:60] or "chat"
    response = Response(data, content_type=kind)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}.{ending}"'
    response.headers["Cache-Control"] = "no-store"
    return response


def _hit(hit: Hit) -> dict[str, Any]:
    fields = msgspec.to_builtins(hit)
    chat = {"id": fields.pop("chat"), "title": fields.pop("title")}
    return {"chat": chat, **fields}


def blueprint(store: ChatStore) -> Blueprint:
    """The routes over a store."""
    routes = Blueprint("chats", __name__)

    @routes.get("/api/chats")
    @describe(
        "Chats, pinned ones first, then the latest.",
        answer=_ChatList,
        query={"limit": POSITIVE, "before": {"type": "string"}},
    )
    def list_chats() -> Response:
        chats, following, total = store.latest(
            number_argument("limit", 50, _MOST_LISTED), request.args.get("before")
        )
        return json_answer({"chats": chats, "next": following, "total": total})

    @routes.post("/api/chats")
    @describe("A new chat.", request=_NewChat, answer=ChatTree, status=201, errors=(409,))
    def create() -> Response:
        given = decode(read(request), _NewChat)
        chat = ChatTree(
            id=secrets.token_hex(12) if given.id is None else given.id,
            title=given.title,
            settings=given.settings,
            pinned=given.pinned,
        )
        return json_answer(store.create(chat), 201)

    @routes.get("/api/chats/search")
    @describe(
        "Messages and titles that hold all of these words.",
        answer=_HitList,
        query={"q": {"type": "string"}, "limit": POSITIVE},
    )
    def search() -> Response:
        query = request.args.get("q", "")
        hits = store.search(query, number_argument("limit", 20, _MOST_LISTED))
        return json_answer({"hits": [_hit(hit) for hit in hits]})

    @routes.get("/api/chats/export")
    @describe("All chats as a file.", answer=dict)
    def export_all() -> Response:
        return _download(
            transfer.bundle(list(store.trees())), "application/json", "colibri-chats", "json"
        )

    @routes.post("/api/chats/import")
    @describe(
        "Chats of a file, all or none.", request=transfer.Bundle, answer=_Imported, status=201
    )
    def import_chats() -> Response:
        chats = transfer.imported(decode(read(request), transfer.Bundle))
        renamed = store.add(chats)
        kept = [store.chat(renamed.get(chat.id, chat.id)) for chat in chats]
        return json_answer({"chats": kept, "renamed": renamed}, 201)

    @routes.get("/api/chats/<chat>")
    @describe("A chat with its messages.", answer=ChatTree)
    def tree(chat: str) -> Response:
        return json_answer(store.tree(chat))

    @routes.patch("/api/chats/<chat>")
    @describe("Changes fields of a chat.", request=_Change, answer=Chat, errors=(409,))
    def change(chat: str) -> Response:
        given = decode(read(request), _Change)
        return json_answer(store.change(chat, **msgspec.structs.asdict(given)))

    @routes.delete("/api/chats/<chat>")
    @describe("Deletes a chat, also if it is gone.", status=204)
    def delete(chat: str) -> Response:
        store.delete(chat)
        return Response(status=204)

    @routes.get("/api/chats/<chat>/export")
    @describe(
        "A chat as a file.",
        answer=dict,
        text="text/markdown",
        query={"format": {"enum": ["json", "markdown"]}, "leaf": {"type": "string"}},
    )
    def export(chat: str) -> Response:
        found = store.tree(chat)
        kind = request.args.get("format", "json")
        if kind == "json":
            return _download(transfer.bundle([found]), "application/json", found.title, "json")
        if kind == "markdown":
            text = transfer.to_markdown(found, request.args.get("leaf"))
            return _download(text.encode(), "text/markdown; charset=utf-8", found.title, "md")
        raise RequestError("'format' must be json or markdown.", param="format")

    @routes.put("/api/chats/<chat>/messages/<message>")
    @describe(
        "Makes (201) or replaces (200) a message.",
        request=_NewMessage,
        answer=Message,
        also=201,
        errors=(409,),
    )
    def put_message(chat: str, message: str) -> Response:
        given = decode(read(request), _NewMessage)
        kept, new = store.put(
            chat,
            Message(
                id=message,
                parent=given.parent,
                role=given.role,
                parts=given.parts,
                meta=given.meta,
            ),
            show=given.active,
        )
        return json_answer(kept, 201 if new else 200)

    @routes.delete("/api/chats/<chat>/messages/<message>")
    @describe("Deletes a message with all below it.", answer=_Deleted)
    def delete_message(chat: str, message: str) -> Response:
        return json_answer({"deleted": store.delete_message(chat, message)})

    @routes.get("/api/presets")
    @describe("Settings to begin chats with.", answer=_PresetList)
    def presets() -> Response:
        return json_answer({"presets": store.presets()})

    @routes.put("/api/presets/<preset>")
    @describe("Makes or replaces a preset.", request=_NewPreset, answer=Preset)
    def put_preset(preset: str) -> Response:
        given = decode(read(request), _NewPreset)
        return json_answer(
            store.put_preset(Preset(id=preset, name=given.name, settings=given.settings))
        )

    @routes.delete("/api/presets/<preset>")
    @describe("Deletes a preset, also if it is gone.", status=204)
    def delete_preset(preset: str) -> Response:
        store.delete_preset(preset)
        return Response(status=204)

    return routes
