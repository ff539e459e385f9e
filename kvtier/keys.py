"""What a block is called: keys, chained block hashes, and the namespace they live in.

An `OffloadKey` is the hash of a block's whole prefix plus the index of the KV
cache group it belongs to, packed into bytes as vLLM packs it. Two blocks with
the same key hold the same attention state *for one model as it was laid out*;
everything outside the key that the bytes depend on is the `Namespace`, and a
persistent tier must keep namespaces apart (vllm 55904, 49261, 55191).
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import NewType

__all__ = [
    "ROOT_HASH",
    "Namespace",
    "OffloadKey",
    "get_offload_block_hash",
    "get_offload_group_idx",
    "hash_block",
    "make_offload_key",
]

OffloadKey = NewType("OffloadKey", bytes)

_GROUP_BYTES = 4

ROOT_HASH = bytes(32)
"""Parent of the first block of every prefix (32 zero bytes)."""


def hash_block(parent: bytes, content: bytes) -> bytes:
    """Hash of one block in the chain of its prefix (SHA-256, 32 bytes).

    Equal hashes mean equal content in every block up to and including this one.
    """
    return hashlib.sha256(parent + content).digest()


def make_offload_key(block_hash: bytes, group_idx: int) -> OffloadKey:
    """Pack a block hash and a KV cache group index (0 to 2**32 - 1) into a key."""
    return OffloadKey(block_hash + group_idx.to_bytes(_GROUP_BYTES, "big"))


def get_offload_block_hash(key: OffloadKey) -> bytes:
    """The block hash inside `key`."""
    return key[:-_GROUP_BYTES]


def get_offload_group_idx(key: OffloadKey) -> int:
    """The KV cache group index inside `key`."""
    return int.from_bytes(key[-_GROUP_BYTES:], "big")


@dataclass(frozen=True, slots=True)
class Namespace:
    """All that a block's bytes depend on besides its key.

    `block_bytes` is the size of one block in bytes; `rank` of `world_size` is
    the parallel rank whose shard the bytes are. `seed` sets apart synthetic
    payloads (see `kvtier.replay`) and is 0 for real ones.
    """

    model: str
    block_bytes: int
    revision: str = ""
    dtype: str = "bfloat16"
    layout: str = "NHD"
    rank: int = 0
    world_size: int = 1
    seed: int = 0

    @property
    def digest(self) -> str:
        """32 hex digits that differ whenever any field differs."""
        fields = "\x00".join(f"{name}={value!r}" for name, value in asdict(self).items())
        return hashlib.sha256(fields.encode()).hexdigest()[:32]
