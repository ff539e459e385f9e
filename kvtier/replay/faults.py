"""Back ends that are slow or broken on purpose.

Each goes around the `BlockStore` of a tier, so what it does happens below the
tier's own verification, where the real thing would happen.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from kvtier.keys import OffloadKey
from kvtier.replay.config import FaultRates
from kvtier.request import ReqContext
from kvtier.runtime import Runtime
from kvtier.tiers.frame import Frame, Raw
from kvtier.tiers.store import BlockStore

__all__ = ["FaultyStore", "SlowStore"]


class _Around(BlockStore):
    """Passes every call on."""

    def __init__(self, store: BlockStore) -> None:
        self._store = store

    def contains(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._store.contains(keys, req_context)

    def get(self, key: OffloadKey, req_context: ReqContext) -> Raw:
        return self._store.get(key, req_context)

    def put(self, key: OffloadKey, frame: Frame, req_context: ReqContext) -> None:
        self._store.put(key, frame, req_context)

    def delete(self, key: OffloadKey, req_context: ReqContext) -> None:
        self._store.delete(key, req_context)

    def scope(self, req_context: ReqContext) -> Hashable:
        return self._store.scope(req_context)

    def close(self) -> None:
        self._store.close()


class SlowStore(_Around):
    """Takes `seconds` longer over every question."""

    def __init__(self, store: BlockStore, seconds: float, runtime: Runtime) -> None:
        super().__init__(store)
        self._seconds = seconds
        self._runtime = runtime

    def contains(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        self._runtime.sleep(self._seconds)
        return super().contains(keys, req_context)


class FaultyStore(_Around):
    """Fails at the given rates.

    Whether a call fails is drawn from `seed`, the kind of fault, the key (of a
    question: its first) and how often that was drawn before. So it does not
    depend on which thread comes first, and a call that failed may succeed later.
    """

    def __init__(self, store: BlockStore, rates: FaultRates, seed: int) -> None:
        super().__init__(store)
        self._rates = dict(rates.items())
        self._seed = seed
        self._drawn: Counter[tuple[str, OffloadKey]] = Counter()

    def contains(self, keys: Sequence[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        self._fail("probe_error", keys[0])
        return super().contains(keys, req_context)

    def get(self, key: OffloadKey, req_context: ReqContext) -> Raw:
        self._fail("load_error", key)
        raw = super().get(key, req_context)
        at = self._draw("corrupt", key)
        if at is None or not raw:
            return raw
        damaged = bytearray(raw)
        damaged[at % len(damaged)] ^= 0xFF
        return damaged

    def put(self, key: OffloadKey, frame: Frame, req_context: ReqContext) -> None:
        self._fail("store_error", key)
        super().put(key, frame, req_context)

    def _fail(self, kind: str, key: OffloadKey) -> None:
        if self._draw(kind, key) is not None:
            raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} ({kind} on purpose)")

    def _draw(self, kind: str, key: OffloadKey) -> int | None:
        """A number drawn at random if a fault of `kind` is due, else `None`."""
        rate = self._rates[kind]
        if not rate:
            return None
        self._drawn[kind, key] += 1
        seen = f"{self._seed} {kind} {self._drawn[kind, key]} ".encode()
        drawn = int.from_bytes(hashlib.blake2b(seen + key, digest_size=16).digest(), "big")
        chance, number = divmod(drawn, 2**64)
        return number if chance < rate * 2**64 else None
