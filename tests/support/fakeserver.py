"""A real HTTP server on a free port over the scripted engine, for tests of what lies above it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from colibri.api.app import create_app
from colibri.api.front import Limits
from colibri.api.server import HttpServer, listen
from colibri.api.services import Services
from colibri.engine import fake
from colibri.engine.client import EngineClient
from colibri.engine.fake import FakeBackend, Options, Script
from colibri.engine.fake_text import DIALECTS
from colibri.engine.protocol import ExpertLayout
from colibri.engine.seat import Seat
from colibri.engine.thread import ThreadEngine
from colibri.families import glm_template, inkling_template
from colibri.families.glm_moe_dsa import GLM_MOE_DSA
from colibri.models.loading import Loaded, Loader, OpenEngine
from colibri.models.served import Conversation, Prompt, ServedModel, make_prompt
from colibri.scheduler import Scheduler
from colibri.settings import Settings
from colibri.text.grammar import Syntax
from colibri.text.history import prepare
from colibri.text.template import ChatTemplate

TIMEOUT = 20
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MODEL_ID = "fake-model"


def render(conversation: Conversation) -> Prompt:
    """The fake model's template: one line a message; tools are written into the messages."""
    messages, _ = prepare(conversation.messages, conversation.tools, template_takes_tools=False)
    lines = [f"{message['role']}: {message['content']}\n" for message in messages]
    return Prompt(tokens=fake.encode("".join(lines) + "assistant: "))


def chat_model(dialect: str, **fields: Any) -> ServedModel:
    """A model of the scripted engine that reads prompts of a real template, and writes them."""
    sources = {"glm": glm_template.TEMPLATE, "hermes": CHATML, "inkling": inkling_template.TEMPLATE}
    told = {"glm": {"enable_thinking": False}, "inkling": inkling_template.VARIABLES}
    kind, tokenizer = DIALECTS[dialect], fake.tokenizer(dialect)
    template = ChatTemplate(
        sources[dialect], tokenizer, where="test", variables=told.get(dialect, {})
    )
    values: dict[str, Any] = {
        "render": lambda conversation: make_prompt(template, kind, conversation),
        "syntax": Syntax(dialect, tokenizer.control_ids(kind.markers)),
        "chat_stops": GLM_MOE_DSA.chat_stops if dialect == "glm" else (),
        **fields,
    }
    return served_model(**values)


def served_model(**fields: Any) -> ServedModel:
    values: dict[str, Any] = {
        "id": MODEL_ID,
        "family": "fake",
        "vocab": 1000,
        "render": render,
        "encode": lambda text, _: fake.encode(text),
        "syntax": Syntax("hermes"),
        **fields,
    }
    return ServedModel(**values)


class FakeServer:
    """Engine, scheduler, app and server; `backend` is the thread transport's scripted engine."""

    def __init__(
        self,
        *scripts: Script,
        context: int = 4096,
        drafts: int = 0,
        dialect: str = "hermes",
        engine: EngineClient | None = None,
        model: ServedModel | None = None,
        limits: Limits | None = None,
        folder: Path | None = None,
        open_engine: OpenEngine | None = None,
        experts: ExpertLayout | None = None,
        **settings: Any,
    ) -> None:
        self.dialect = dialect
        self.settings = Settings(port=0, **settings)
        self.backend = FakeBackend(
            Options(
                context=context, scripts=scripts, drafts=drafts, dialect=dialect, experts=experts
            )
        )
        self.engine = engine or ThreadEngine(
            lambda: self.backend, slots=self.settings.kv_slots, parallel=self.settings.parallel
        )
        self.seat = Seat(self.engine)
        self.scheduler = Scheduler(
            self.seat,
            max_queue=self.settings.max_queue,
            queue_timeout=self.settings.queue_timeout,
            parallel=self.settings.parallel,
        )
        self.model = model or served_model()
        loaded = Loaded(model=self.model, settings=self.settings, folder=folder)
        loader = Loader(
            self.settings,
            self.seat,
            self.scheduler,
            loaded,
            **({"open_engine": open_engine} if open_engine else {}),
        )
        self.services = Services(
            settings=self.settings, engine=self.seat, scheduler=self.scheduler, loader=loader
        )
        app = create_app(self.services)
        self.http = HttpServer(
            app,
            listen("127.0.0.1", 0),
            refuses=app.extensions["colibri_guard"].refuses,
            limits=limits,
        )
        self.port = int(self.http.server_address[1])
        self.url = self.http.url
        self._thread = threading.Thread(target=self.http.serve)

    def start(self) -> None:
        self.engine.start()
        self._thread.start()
        self.engine.wait_ready(TIMEOUT)

    def stop(self) -> None:
        self.http.stop()
        self._thread.join(TIMEOUT)
        self.scheduler.close()
        self.services.close()
        self.seat.stop()

    # ---- requests ----

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=TIMEOUT, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=TIMEOUT, **options)

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        return httpx.request(method, self.url + path, timeout=TIMEOUT, **options)

    def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", chat_body(content, **fields))

    def chunks(self, content: str = "hi", **fields: Any) -> list[dict[str, Any]]:
        """The events of a streamed chat, `[DONE]` checked and left out."""
        response = self.chat(content, stream=True, **fields)
        assert response.status_code == 200, response.text
        events = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    @contextmanager
    def raw(self, request: bytes) -> Iterator[socket.socket]:
        """A connection on which these bytes have been sent."""
        with socket.create_connection(("127.0.0.1", self.port), TIMEOUT) as connection:
            connection.sendall(request)
            yield connection

    def exchange(self, request: bytes) -> bytes:
        """Everything the server answers to these bytes until it closes, which it is asked to do."""
        if b"\r\nConnection:" not in request:
            request = request.replace(b" HTTP/1.1\r\n", b" HTTP/1.1\r\nConnection: close\r\n", 1)
        answer = b""
        with self.raw(request) as connection:
            while piece := connection.recv(1 << 16):
                answer += piece
        return answer

    def wait_for(self, **counters: int) -> None:
        """Waits until the scheduler's counters have these values."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            now = self.scheduler.counters()
            if all(getattr(now, name) == value for name, value in counters.items()):
                return
            time.sleep(0.01)
        raise AssertionError(f"the counters never became {counters}: {self.scheduler.counters()}")


def chat_body(content: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL_ID, "messages": [{"role": "user", "content": content}], **fields}


def chat_request(body: Mapping[str, Any], headers: str = "") -> bytes:
    """A chat request as bytes on the wire, the last one of its connection."""
    data = json.dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nConnection: close\r\n{headers}"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def text_of(chunks: Sequence[Mapping[str, Any]]) -> str:
    """The content that a client gathers from a stream."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)
