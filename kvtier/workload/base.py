"""The one shape of all workloads."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["EXPECTED", "Prompt", "Workload", "reason"]

EXPECTED = "a Mooncake trace (JSON lines) or a directory of text files"


class Prompt(NamedTuple):
    """One request: its id, unique in its workload, and the chained hashes of its blocks."""

    req_id: str
    block_hashes: tuple[bytes, ...]


class Workload(ABC):
    """A finite sequence of prompts, the same each time it is iterated.

    `name` is what a person calls it. `model` goes into the namespace of a run:
    equal models mean that equal hashes stand for equal content.
    """

    name: str
    model: str

    @abstractmethod
    def __len__(self) -> int:
        """How many prompts."""

    @abstractmethod
    def __iter__(self) -> Iterator[Prompt]:
        """The prompts, in the order they arrive."""


def reason(error: OSError) -> str:
    """What the operating system said, without its number and the file's name."""
    return error.strerror or str(error)
