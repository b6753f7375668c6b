"""GET /metrics: the counters of scheduler and engine for Prometheus.

For: monitoring. Needs the key like every route but /health. Labels have few values, none of a
client's making. Counters of the engine begin anew when its process is restarted, which Prometheus
expects of counters; while it does not answer, its series are absent. Threads: any.
"""

from __future__ import annotations

from collections.abc import Iterator

from flask import Blueprint, Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from colibri import __version__
from colibri.api.describe import describe
from colibri.api.health import SNAPSHOT_SECONDS
from colibri.api.services import Services
from colibri.engine.client import EngineStatus
from colibri.engine.protocol import EngineSnapshot, KvState, MemoryInfo
from colibri.scheduler.measures import Distribution

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES = ("loading", "ready", "restarting", "failed", "stopped", "unloaded")


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"colibri_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"colibri_{name}", text, value=value)


def _histogram(name: str, text: str, values: Distribution) -> Metric:
    buckets = [
        ("+Inf" if bound == float("inf") else f"{bound:g}", count)
        for bound, count in zip(values.bounds, values.counts, strict=True)
    ]
    return HistogramMetricFamily(f"colibri_{name}", text, buckets=buckets, sum_value=values.total)


class Collector:
    """Reads the services anew for every scrape."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        status = self._services.engine.status()
        snapshot = self._services.engine.snapshot(SNAPSHOT_SECONDS)
        yield from self._server()
        yield from self._requests()
        yield from _engine(status)
        if status.info is not None and status.info.memory is not None:
            yield _memory(status.info.memory)
        if snapshot is not None:
            yield from _experts(snapshot)
            yield from _drafts(snapshot)
            yield from _kv(snapshot.kv)

    def _server(self) -> Iterator[Metric]:
        info = GaugeMetricFamily(
            "colibri_info", "The program and the model that is served.", labels=["version", "model"]
        )
        model = self._services.current_model()
        info.add_metric([__version__, model.id if model else ""], 1)
        yield info
        context = self._services.known_context()
        if context is not None:
            yield _gauge("context_tokens", "Most tokens of prompt and answer together.", context)

    def _requests(self) -> Iterator[Metric]:
        counters = self._services.scheduler.counters()
        measured = self._services.scheduler.measures.now()
        yield _gauge("requests_active", "Requests that run now.", counters.active)
        yield _gauge("requests_queued", "Requests that wait for their turn now.", counters.queued)
        ended = CounterMetricFamily(
            "colibri_requests", "Requests that have ended, by how.", labels=["outcome"]
        )
        for outcome in ("completed", "rejected", "timed_out", "cancelled", "failed"):
            ended.add_metric([outcome], getattr(counters, outcome))
        yield ended
        yield _histogram(
            "queue_wait_seconds", "Time that requests waited for their turn.", measured.queue_wait
        )
        yield _histogram(
            "time_to_first_token_seconds",
            "From a request's arrival in the queue to the first token of its answer.",
            measured.first_token,
        )
        yield _histogram(
            "time_per_output_token_seconds",
            "Mean time of a token of an answer, after the first.",
            measured.output_token,
        )
        yield _counter(
            "prompt_tokens", "Tokens of prompts, held ones included.", measured.prompt_tokens
        )
        yield _counter(
            "cached_prompt_tokens",
            "Tokens of prompts that were held already and not computed.",
            measured.cached_tokens,
        )
        yield _counter("generated_tokens", "Tokens of answers.", measured.generated_tokens)


def _engine(status: EngineStatus) -> Iterator[Metric]:
    state = GaugeMetricFamily("colibri_engine_state", "1 for the state it is in.", labels=["state"])
    for name in _STATES:
        state.add_metric([name], int(status.state == name))
    yield state
    yield _counter("engine_restarts", "Times the engine process was restarted.", status.restarts)
    if status.rss_bytes is not None:
        yield _gauge("engine_resident_bytes", "Memory of the engine process.", status.rss_bytes)


def _memory(memory: MemoryInfo) -> Metric:
    shares = GaugeMetricFamily(
        "colibri_memory_planned_bytes", "How the memory budget was shared out.", labels=["use"]
    )
    for use in ("program", "weights", "experts", "kv", "scratch"):
        shares.add_metric([use], getattr(memory, use))
    if memory.budget is not None:
        shares.add_metric(["budget"], memory.budget)
    return shares


def _experts(snapshot: EngineSnapshot) -> Iterator[Metric]:
    experts = snapshot.experts
    yield _gauge("expert_slots", "Experts that the cache has room for.", experts.slots)
    lookups = CounterMetricFamily(
        "colibri_expert_lookups", "Experts that were asked for.", labels=["result"]
    )
    lookups.add_metric(["hit"], experts.lookups - experts.misses)
    lookups.add_metric(["miss"], experts.misses)
    yield lookups
    yield _counter("expert_read_bytes", "Bytes of experts read from disk.", experts.bytes_read)
    guessed = CounterMetricFamily(
        "colibri_expert_guessed_bytes", "Bytes read on a guess, by what they were.", labels=["use"]
    )
    guessed.add_metric(["useful"], experts.useful_bytes)
    guessed.add_metric(["wasted"], experts.wasted_bytes)
    yield guessed
    yield _counter(
        "disk_wait_seconds", "Time that computing waited for experts.", experts.disk_wait_ms / 1000
    )


def _drafts(snapshot: EngineSnapshot) -> Iterator[Metric]:
    drafts = snapshot.drafts
    yield _gauge("drafts_on", "Whether tokens are drafted now.", int(drafts.on))
    made = CounterMetricFamily("colibri_drafts", "Drafted tokens.", labels=["result"])
    made.add_metric(["accepted"], drafts.accepted)
    made.add_metric(["rejected"], drafts.proposed - drafts.accepted)
    yield made


def _kv(kv: KvState) -> Iterator[Metric]:
    slots = GaugeMetricFamily("colibri_kv_slots", "KV slots, by what they do.", labels=["state"])
    slots.add_metric(["busy"], sum(slot.busy for slot in kv.slots))
    slots.add_metric(["idle"], sum(not slot.busy for slot in kv.slots))
    yield slots
    yield _gauge("kv_tokens", "Tokens held in KV slots.", sum(slot.tokens for slot in kv.slots))
    yield _gauge("kv_kept_sessions", "Conversations kept beside the slots.", kv.kept_sessions)
    store = kv.store
    if store is None:
        return
    yield _gauge("store_blocks", "Blocks of context on disk.", store.blocks)
    yield _gauge("store_bytes", "Bytes of context on disk.", store.bytes)
    yield _gauge("store_budget_bytes", "Disk that stored context may take.", store.budget_bytes)
    blocks = CounterMetricFamily(
        "colibri_store_operations", "Blocks of stored context, by what happened.", labels=["what"]
    )
    for what in ("put", "read", "evicted", "damaged", "refused", "failed"):
        blocks.add_metric([what], getattr(store, f"{what}_blocks"))
    yield blocks


def blueprint(services: Services) -> Blueprint:
    """The route."""
    routes = Blueprint("metrics", __name__)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(services))

    @routes.get("/metrics")
    @describe("Counters for Prometheus.", media="text/plain")
    def metrics() -> Response:
        return Response(generate_latest(registry), content_type=CONTENT_TYPE)

    return routes
