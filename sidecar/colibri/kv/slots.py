"""What a slot held, in a small file of its own: `.coli_kv`, `.coli_kv.1`, ...

For: the engine process, which saves a slot after a turn and finds it again after a restart. Not
for: KV itself: the file names blocks of the prefix store, and what the store has lost since is
computed again.

    head   magic "COLIKVI1", version, bytes of the body, BLAKE2b-256 over all of this and the body
    body   msgpack: model (weights and tokenizer), layout of its KV, tokens of a block, tokens of
           the slot, ids of its whole blocks, state of the drafts and of the sampler (bytes that
           only the engine understands)

What is behind the last whole block is a tail in the store, or is not on disk. The file is replaced
at once; the checks are done before anything of it is believed. One that is damaged, of another
version or another model's is renamed to `NAME.damaged-1`, `NAME.version-1`, `NAME.foreign-1`, ...
with one line in the log, and the slot starts cold. Of these files the newest few are kept. A file
of the same model whose KV is laid out otherwise (another precision, say) is nobody's fault: the
next save replaces it.

Nothing here raises for what disks do. Thread rule: one thread at a time per file.
"""

from __future__ import annotations

import hashlib
import logging
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from colibri.kv import files
from colibri.kv.blocks import ID_BYTES, pack_tokens, unpack_tokens

log = logging.getLogger(__name__)

NAME: Final = ".coli_kv"
VERSION: Final = 2
# A slot of a million tokens with generous state; more is no file of ours.
MOST_BYTES: Final = 256 << 20
MOST_SET_ASIDE: Final = 8

_MAGIC: Final = b"COLIKVI1"
_HEAD: Final = struct.Struct("<8sIQ")
_HASH_BYTES: Final = 32
_ASIDE: Final = re.compile(r"\.(?:damaged|version|foreign)-(\d+)\Z")

Fault = Literal["damaged", "version", "foreign"]
_WORDS: Final[dict[Fault, str]] = {
    "damaged": "it is damaged",
    "version": "it is of another version",
    "foreign": "it belongs to another model",
}


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """A slot at the end of a turn. `blocks` are the ids of the whole blocks of `tokens`."""

    tokens: tuple[int, ...]
    blocks: tuple[bytes, ...]
    draft: bytes = b""
    sampler: bytes = b""


class _Body(msgspec.Struct, array_like=True, frozen=True):
    model: str
    layout: str
    block_tokens: int
    tokens: bytes
    blocks: bytes
    draft: bytes
    sampler: bytes


class _FaultyFile(Exception):
    """Why a file is set aside."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(_WORDS[fault])
        self.fault: Fault = fault


class SlotFiles:
    """The index files of a model's slots. `folder` is its state directory, `model` and `layout`
    name weights and KV as the store's fingerprint does.
    """

    def __init__(self, folder: Path, model: str, block_tokens: int, layout: str = "") -> None:
        self.folder = folder
        self._model = model
        self._layout = layout
        self._block_tokens = block_tokens

    def path(self, slot: int) -> Path:
        """Where a slot's file lies."""
        return self.folder / (f"{NAME}.{slot}" if slot else NAME)

    def save(self, slot: int, state: SlotState) -> bool:
        """Replaces the slot's file; False, with a line in the log, if that failed.

        The blocks that it names should be on the device before: `PrefixStore.sync`.
        """
        if len(state.blocks) != len(state.tokens) // self._block_tokens:
            raise ValueError("a slot has one block for every whole block of its tokens")
        body = msgspec.msgpack.encode(
            _Body(
                self._model,
                self._layout,
                self._block_tokens,
                pack_tokens(state.tokens),
                b"".join(state.blocks),
                state.draft,
                state.sampler,
            )
        )
        head = _HEAD.pack(_MAGIC, VERSION, len(body))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            files.replace(self.path(slot), head + _hash(head, body) + body, sync=True)
        except OSError as error:
            log.warning("%s cannot be saved: %s", self.path(slot), error.strerror)
            return False
        return True

    def load(self, slot: int) -> SlotState | None:
        """What was saved last; None if there is nothing to trust. Sets bad files aside."""
        path = self.path(slot)
        try:
            return self._decode(files.read(path, MOST_BYTES))
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s is ignored: %s", path, error.strerror)
            return None
        except ValueError:
            set_aside(path, "damaged")
        except _FaultyFile as faulty:
            set_aside(path, faulty.fault)
        return None

    def forget(self, slot: int) -> bool:
        """Deletes a slot's file, if there is one; False, with a line in the log, if that failed."""
        try:
            files.remove(self.path(slot))
        except OSError as error:
            log.warning("%s cannot be deleted: %s", self.path(slot), error.strerror)
            return False
        return True

    def _decode(self, data: bytes) -> SlotState | None:
        start = _HEAD.size + _HASH_BYTES
        if len(data) < start:
            raise _FaultyFile("damaged")
        head, body = data[: _HEAD.size], data[start:]
        magic, version, size = _HEAD.unpack(head)
        if size != len(body) or data[_HEAD.size : start] != _hash(head, body):
            raise _FaultyFile("damaged")
        if magic != _MAGIC or version != VERSION:
            raise _FaultyFile("version")
        try:
            raw = msgspec.msgpack.decode(body, type=_Body)
        except (msgspec.DecodeError, RecursionError):
            raise _FaultyFile("damaged") from None
        if raw.model != self._model:
            raise _FaultyFile("foreign")
        if (raw.layout, raw.block_tokens) != (self._layout, self._block_tokens):
            log.info("slot file: the KV of %s is laid out otherwise: it starts cold", self.folder)
            return None
        if len(raw.tokens) % 4 or len(raw.blocks) % ID_BYTES:
            raise _FaultyFile("damaged")
        ids = tuple(raw.blocks[at : at + ID_BYTES] for at in range(0, len(raw.blocks), ID_BYTES))
        if len(ids) != len(raw.tokens) // 4 // self._block_tokens:
            raise _FaultyFile("damaged")
        return SlotState(
            tokens=unpack_tokens(raw.tokens), blocks=ids, draft=raw.draft, sampler=raw.sampler
        )


def _hash(head: bytes, body: bytes) -> bytes:
    digest = hashlib.blake2b(head, digest_size=_HASH_BYTES)
    digest.update(body)
    return digest.digest()


def set_aside(path: Path, fault: Fault) -> Path | None:
    """Renames a file that is not believed; returns its new name, None if that failed.

    The oldest of more than MOST_SET_ASIDE such files of one name makes room.
    """
    try:
        aside = _aside(path)
        target = path.with_name(f"{path.name}.{fault}-{1 + max(aside, default=0)}")
        files.rename(path, target)
        for old in sorted(aside)[: max(0, len(aside) + 1 - MOST_SET_ASIDE)]:
            files.remove(aside[old])
    except OSError as error:
        log.warning("%s is ignored: %s (%s)", path, _WORDS[fault], error.strerror)
        return None
    log.warning("%s is set aside as %s: %s", path, target.name, _WORDS[fault])
    return target


def _aside(path: Path) -> dict[int, Path]:
    """Files set aside before, by their number, which grows."""
    found = {}
    for other in path.parent.iterdir():
        if other.name.startswith(path.name + "."):
            match = _ASIDE.fullmatch(other.name[len(path.name) :])
            if match:
                found[int(match[1])] = other
    return found


def all_files(folder: Path) -> Sequence[Path]:
    """Every file that slots left in a folder, set-aside ones included. Raises OSError."""
    pattern = re.compile(re.escape(NAME) + r"(?:\.\d+)?(?:\.tmp|\.[a-z]+-\d+)?\Z")
    return sorted(path for path in folder.iterdir() if pattern.match(path.name))
