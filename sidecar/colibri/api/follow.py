"""Following a generation for a client: events, signs of life, and the end when the client leaves.

For: every dialect's handler, streaming or not, and the routes, whose streams end in band whatever
happens (`ended`). Not for: encoding; the handler turns events into bytes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from colibri import errors
from colibri.api.errors import internal_error
from colibri.engine.answer import Notice
from colibri.engine.protocol import Done, Failed, JobEvent, Tokens
from colibri.errors import ClientGoneError, ColibriError, EngineFailure
from colibri.scheduler import Generation

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
# Clients give up after 120 seconds at best; proxies and agents are less patient than that.
# We promise one every five seconds and look every quarter.
HEARTBEAT_SECONDS = 4.5

_KINDS: dict[str, type[ColibriError]] = {
    "context_length_exceeded": errors.ContextLengthError,
    "engine_lost": errors.WorkerLostError,
    "engine_unavailable": errors.WorkerUnavailableError,
    "engine_stopped": errors.WorkerUnavailableError,
}


def failure(event: Failed) -> ColibriError:
    """The error that a failed job is to its client."""
    kind = _KINDS.get(event.code, EngineFailure)
    return kind(event.message, hint=event.hint, code=event.code)


def follow(
    generation: Generation, gone: Callable[[], bool], heartbeat_seconds: float = HEARTBEAT_SECONDS
) -> Iterator[Tokens | Done | Notice | None]:
    """Text events and the end of a generation; once what there is to know before the answer comes;
    None when it is time for a sign of life.

    Raises ClientGoneError within a second after the client has left, and what made the job fail.
    However the iteration ends, the job is over afterwards.
    """
    checked = spoken = time.monotonic()
    warned = False
    try:
        while True:
            event: JobEvent | None = generation.next_event(POLL_SECONDS)
            now = time.monotonic()
            if now - checked >= POLL_SECONDS:
                checked = now
                if gone():
                    raise ClientGoneError("the client left while its answer was being generated.")
            if generation.notice is not None and not warned:
                warned = True
                yield generation.notice
            if isinstance(event, Failed):
                raise failure(event)
            if isinstance(event, Done):
                yield event
                return
            if isinstance(event, Tokens):
                spoken = now
                yield event
            elif now - spoken >= heartbeat_seconds:
                spoken = now
                yield None
    finally:
        generation.close()


def ended(
    events: Iterator[bytes], generation: Generation, failed: Callable[[ColibriError], bytes]
) -> Iterator[bytes]:
    """The events of a stream; one that breaks off ends with the event that `failed` makes of the
    error, unless nobody listens any more. The generation is over afterwards.
    """
    try:
        yield from events
    except ClientGoneError as error:
        log.info("%s", error)
    except ColibriError as error:
        log.error("a stream ended early: %s", error)
        yield failed(error)
    except Exception:
        log.exception("a stream ended on an internal error")
        yield failed(internal_error())
    finally:
        generation.close()
