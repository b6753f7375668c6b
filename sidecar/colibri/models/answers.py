"""How the answers of one model are read, and the vocabulary prepared for grammars.

For: the model's backend. Not for: what one answer says (`text.answer`). Thread rule: `Prepared` may
be used by any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from colibri.errors import ModelError
from colibri.models.model import ModelText
from colibri.text.answer import Answers
from colibri.text.detok import Detokenizer
from colibri.text.grammar import Masks
from colibri.text.reasoning import closing

log = logging.getLogger(__name__)


class Prepared:
    """What `make` gives, made once: in a thread of its own after `start`, else when needed."""

    def __init__(self, make: Callable[[], Masks | None]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made = False
        self._value: Masks | None = None

    def start(self) -> None:
        """Begins now; the thread ends by itself."""
        threading.Thread(target=self.get, name="grammars").start()

    def get(self) -> Masks | None:
        """Waits until it is made. None when that failed, which was logged."""
        with self._lock:
            if not self._made:
                self._value, self._made = self._make(), True
            return self._value


def prepare_masks(text: ModelText) -> Prepared:
    """The vocabulary of a model for grammars. Making it takes a second for a large one, and the
    interpreter's lock meanwhile.
    """

    def make() -> Masks | None:
        try:
            return Masks(text.tokenizer, text.geometry.vocab, text.end_ids)
        except ModelError as error:
            log.warning("answers of a demanded form are not enforced: %s", error)
            return None

    return Prepared(make)


def model_answers(text: ModelText, masks: Prepared) -> Answers:
    """The answers of a model, in its family's dialect."""
    tokenizer, dialect = text.tokenizer, text.family.dialect
    marks = tokenizer.control_ids(dialect.markers)
    return Answers(
        dialect,
        marks,
        lambda parse: Detokenizer(tokenizer, marks=marks.values() if parse else ()),
        lambda: closing(dialect, tokenizer),
        masks.get,
    )
