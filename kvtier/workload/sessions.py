"""Multi-turn sessions over real text, cut into blocks and hash-chained as a prefix cache does it.

Each turn of a session is the whole prompt of the turn before plus more text, so
most of a prompt was asked before, by the same session or by another one over
the same text.
"""

from __future__ import annotations

import os
import random
import stat
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from kvtier.errors import BadInput
from kvtier.keys import ROOT_HASH, hash_block
from kvtier.workload.base import EXPECTED, Prompt, Workload, reason

__all__ = ["TEXT_BLOCK_BYTES", "SessionWorkload", "python_topics", "read_directory"]

TEXT_BLOCK_BYTES = 256
"""Text in one block: about 64 tokens of four characters."""

_HASH_BYTES = len(ROOT_HASH)


class SessionWorkload(Workload):
    """Multi-turn sessions over texts, several open at a time, their turns interleaved.

    `texts` come in an order that does not vary. Every session begins with the
    same *system prompt*, the head of the first text that has a block, and goes on with a
    *chapter*, a stretch of one text, of which it has read more with every turn.
    Each chapter is the subject of `VISITS` sessions. Which sessions are open
    together, whose turn it is and how long the turn is come from `seed`.
    """

    SYSTEM_BLOCKS = 8
    CHAPTER_BLOCKS = 128
    TURN_BLOCKS = (2, 12)
    OPEN_SESSIONS = 8
    VISITS = 2

    def __init__(
        self,
        name: str,
        texts: Iterable[bytes],
        *,
        seed: int = 0,
        limit: int | None = None,
    ) -> None:
        self.name = name
        self.model = f"text:{TEXT_BLOCK_BYTES}"
        self._system_blocks = 0
        self._chapters = self._read(texts)
        if not self._chapters:
            raise BadInput(
                name, "holds no whole block of text", f"a text of {TEXT_BLOCK_BYTES} bytes or more"
            )
        self._seed = seed
        self._turns = list(islice(self._schedule(), min(limit or sys.maxsize, sys.maxsize)))

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Prompt]:
        for session, turn, blocks in self._turns:
            chain = self._chapters[session % len(self._chapters)]
            yield Prompt(
                f"s{session}t{turn}",
                tuple(chain[i * _HASH_BYTES : (i + 1) * _HASH_BYTES] for i in range(blocks)),
            )

    def _read(self, texts: Iterable[bytes]) -> list[bytes]:
        """For each chapter the hashes of system prompt and chapter, one after another."""
        chapters: list[bytes] = []
        system: tuple[bytes, bytes] | None = None
        for text in texts:
            blocks = [
                text[start : start + TEXT_BLOCK_BYTES]
                for start in range(0, len(text) - TEXT_BLOCK_BYTES + 1, TEXT_BLOCK_BYTES)
            ]
            if not blocks:
                continue
            if system is None:
                system = _chain(b"", ROOT_HASH, blocks[: self.SYSTEM_BLOCKS])
                self._system_blocks = len(system[0]) // _HASH_BYTES
            for start in range(0, len(blocks), self.CHAPTER_BLOCKS):
                chapter, _ = _chain(*system, blocks[start : start + self.CHAPTER_BLOCKS])
                chapters.append(chapter)
        return chapters

    def _schedule(self) -> Iterator[tuple[int, int, int]]:
        """(session, turn, blocks in the prompt), in the order the turns arrive."""
        rng = random.Random(self._seed)
        waiting = list(range(self.VISITS * len(self._chapters)))
        rng.shuffle(waiting)
        open_now: list[list[int]] = []
        while waiting or open_now:
            while waiting and len(open_now) < self.OPEN_SESSIONS:
                open_now.append([waiting.pop(), 0, self._system_blocks])
            state = rng.choice(open_now)
            session, turn, asked = state
            whole = len(self._chapters[session % len(self._chapters)]) // _HASH_BYTES
            asked = min(asked + rng.randint(*self.TURN_BLOCKS), whole)
            yield session, turn, asked
            state[1:] = turn + 1, asked
            if asked == whole:
                open_now.remove(state)


def _chain(hashes: bytes, parent: bytes, blocks: Iterable[bytes]) -> tuple[bytes, bytes]:
    """`hashes` followed by those of `blocks` chained onto `parent`, and the last of them."""
    chained = [hashes]
    for block in blocks:
        parent = hash_block(parent, block)
        chained.append(parent)
    return b"".join(chained), parent


def python_topics(*, seed: int = 0, limit: int | None = None) -> SessionWorkload:
    """Sessions over the help topics that Python ships: real text, no download.

    Raises `BadInput` on a Python that was stripped of them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        problem = "this Python comes without its help topics"
        raise BadInput("pydoc_data.topics", problem, "a TRACE to replay instead") from error
    texts = (text.encode() for _, text in sorted(topics.items()))
    return SessionWorkload("pydoc_data.topics", texts, seed=seed, limit=limit)


def read_directory(path: Path, *, seed: int = 0, limit: int | None = None) -> SessionWorkload:
    """Sessions over the text files below `path`, in the order of their relative names.

    Names that begin with a dot are passed over, and so is the rest of a file
    behind its last whole block. Raises `BadInput` for a file that is not UTF-8
    text or cannot be read, and if there is no whole block in any.
    """
    return SessionWorkload(str(path), _texts(path), seed=seed, limit=limit)


def _texts(path: Path) -> Iterator[bytes]:
    for file in sorted(_files(path), key=lambda file: file.relative_to(path).as_posix()):
        try:
            if not stat.S_ISREG(file.stat().st_mode):
                raise BadInput(str(file), "is not a regular file", "UTF-8 text")
            text = file.read_bytes()
        except OSError as error:
            raise BadInput(str(file), f"cannot be read: {reason(error)}", "UTF-8 text") from error
        if b"\x00" in text:
            raise BadInput(str(file), f"byte {text.index(0)} is zero", "UTF-8 text")
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise BadInput(str(file), f"byte {error.start} is no UTF-8", "UTF-8 text") from error
        yield text


def _files(path: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise BadInput(str(error.filename), f"cannot be read: {reason(error)}", EXPECTED) from error

    for folder, subfolders, names in os.walk(path, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if not name.startswith("."))
