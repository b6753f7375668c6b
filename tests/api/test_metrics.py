"""GET /metrics: true figures, in Prometheus' format, with few series.

Covers R188 as far as the cache goes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from colibri.engine.child import ChildSpec
from colibri.engine.fake import Options, Script
from colibri.engine.process import ProcessEngine, Supervision
from tests.support.fakeserver import FakeServer

Start = Callable[..., FakeServer]
DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "api.md"


def scrape(server: FakeServer) -> dict[str, float]:
    """Every sample under its name with labels."""
    answer = server.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        sample.name + "".join(f",{k}={v}" for k, v in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_requests_and_tokens_are_counted(start: Start) -> None:
    server = start(Script(pieces=("a", "b", "c")), Script(pieces=("d",)), Script(fail_at=0))
    before = scrape(server)
    usage = server.chat("hi").json()["usage"]
    assert server.chat("hi").status_code == 200
    assert server.chat("hi").status_code == 500
    assert server.chat("hi", n=2).status_code == 400
    after = scrape(server)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["colibri_requests_total,outcome=completed"] == 2
    assert grown["colibri_requests_total,outcome=failed"] == 1
    assert grown["colibri_generated_tokens_total"] == 4
    assert grown["colibri_prompt_tokens_total"] == 2 * usage["prompt_tokens"]
    assert 0 < grown["colibri_cached_prompt_tokens_total"] < usage["prompt_tokens"]
    assert grown["colibri_queue_wait_seconds_count"] == 3
    assert grown["colibri_time_to_first_token_seconds_count"] == 2
    assert grown["colibri_time_to_first_token_seconds_sum"] > 0
    assert grown["colibri_time_per_output_token_seconds_count"] == 1
    assert after["colibri_engine_state,state=ready"] == 1
    assert after["colibri_requests_active"] == 0


def test_what_waits_and_what_is_turned_away_is_seen(start: Start) -> None:
    from tests.support.fakeserver import chat_body, chat_request

    server = start(Script(prefill_ms=600_000), max_queue=1)
    with server.raw(chat_request(chat_body())):
        server.wait_for(active=1)
        with server.raw(chat_request(chat_body())):
            server.wait_for(queued=1)
            assert server.chat().status_code == 429
            now = scrape(server)
    assert now["colibri_requests_active"] == now["colibri_requests_queued"] == 1
    assert now["colibri_requests_total,outcome=rejected"] == 1
    assert now["colibri_kv_slots,state=busy"] == 1


def test_buckets_add_up(server: FakeServer) -> None:
    server.chat()
    now = scrape(server)
    buckets = [v for name, v in now.items() if name.startswith("colibri_queue_wait_seconds_bucket")]
    assert buckets == sorted(buckets)
    assert now["colibri_queue_wait_seconds_bucket,le=+Inf"] == 1


def test_nothing_that_a_client_sends_becomes_a_label(server: FakeServer) -> None:
    before = scrape(server).keys()
    for n in range(5):
        server.post("/v1/chat/completions", {"model": f"m{n}", "messages": []})
        server.get(f"/nope/{n}")
    assert scrape(server).keys() == before


def test_metrics_need_the_key(start: Start) -> None:
    server = start(api_key="secret")
    assert server.get("/metrics").status_code == 401
    assert server.get("/metrics", headers={"x-api-key": "secret"}).status_code == 200


def test_a_dead_engine_has_metrics_too(start: Start) -> None:
    plain = msgspec.to_builtins(Options(), builtin_types=(bytes,))
    rules = Supervision(poll_seconds=0.05, crash_limit=1)
    spec = ChildSpec(factory="colibri.engine.fake:open_backend", options=plain)
    server = start(engine=ProcessEngine(spec, rules))
    pid = server.get("/health").json()["engine"]["pid"]
    os.kill(pid, signal.SIGKILL)
    while server.engine.status().state != "failed":
        time.sleep(0.01)
    now = scrape(server)
    assert now["colibri_engine_state,state=failed"] == 1
    assert now["colibri_engine_restarts_total"] == 1
    assert "colibri_kv_tokens" not in now


def test_every_metric_is_in_the_docs(server: FakeServer) -> None:
    server.chat()
    text = DOCS.read_text()
    families = list(text_string_to_metric_families(server.get("/metrics").text))
    assert len(families) > 20
    assert [f.name for f in families if f"`{f.name}" not in text] == []
