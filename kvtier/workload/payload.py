"""The bytes that blocks stand for in a replay."""

from __future__ import annotations

import hashlib

from kvtier.keys import OffloadKey

__all__ = ["PayloadStream"]


class PayloadStream:
    """The bytes of every block of one run: `stream(key)` is `block_bytes` of SHAKE-128.

    Keyed by `seed` and the whole key, so a tier cannot make them up, and two
    keys, or one key in runs of two seeds, have unrelated bytes.
    """

    def __init__(self, seed: int, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self._keyed = hashlib.shake_128(f"kvtier payload {seed}\x00".encode())

    def __call__(self, key: OffloadKey) -> bytes:
        stream = self._keyed.copy()
        stream.update(key)
        return stream.digest(self.block_bytes)
