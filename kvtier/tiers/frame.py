"""What is stored for a block: a header that names it, then its bytes.

Every back end stores the same frame, so a block is verified on load wherever
it was kept. Between a store and a load a file can be truncated, a page can rot,
a proxy can append, an operator can rename; each of these must end in a failed
load and never in wrong attention state (vllm 54363).

    offset  size  field (integers are big-endian)
    0       4     magic, `KVTB`
    4       2     version, 1
    6       2     length of the key
    8       8     length of the payload
    16      16    XXH3-128 of bytes 0 to 16, the key and the payload
    32      n     key
    32 + n        payload, to the end of the frame

The checksum finds accidents. It is no defence against somebody who may write
to the back end: such a person can compute it too.

A format that changes gets a new version here, and back ends that outlive a
process must then keep the versions apart, because each takes the other's
frames for damaged.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from kvtier.errors import DamagedBlock
from kvtier.keys import OffloadKey

__all__ = ["Frame", "Raw", "decode", "encode", "frame_bytes"]

Raw = bytes | bytearray | memoryview
"""Bytes as a back end returns them."""

_FIELDS = struct.Struct(">4sHHQ")
_MAGIC = b"KVTB"
_VERSION = 1
_CHECKSUM_BYTES = 16
_FIXED_BYTES = _FIELDS.size + _CHECKSUM_BYTES


class Frame(NamedTuple):
    """A frame in two parts, so that storing a block does not copy it: `b"".join` or `writev`.

    The payload is a view of the slot, and the checksum was taken before: if the
    slot changes while it is written out, the load finds damage.
    """

    header: bytes
    payload: memoryview


def encode(key: OffloadKey, payload: memoryview) -> Frame:
    """The frame of the block `key` whose bytes are `payload` (contiguous bytes)."""
    fields = _FIELDS.pack(_MAGIC, _VERSION, len(key), payload.nbytes)
    return Frame(b"".join((fields, _checksum(fields, key, payload), key)), payload)


def decode(key: OffloadKey, raw: Raw, size: int) -> memoryview:
    """The payload inside `raw`, once everything about it was found right.

    `key` is the block that was asked for and `size` its size in bytes. The
    result is a view of `raw`: nothing was copied, so nothing unverified can be
    in a slot. Raises `DamagedBlock` saying what is wrong.
    """
    frame = memoryview(raw)
    if len(frame) < _FIELDS.size:
        raise DamagedBlock(f"truncated: {len(frame)} bytes are not even a header")
    fields = frame[: _FIELDS.size]
    magic, version, key_bytes, payload_bytes = _FIELDS.unpack(fields)
    if magic != _MAGIC:
        raise DamagedBlock(f"not a block: it begins with {magic!r}, not {_MAGIC!r}")
    if version != _VERSION:
        raise DamagedBlock(f"frame version {version}, and this kvtier reads version {_VERSION}")
    head = _FIXED_BYTES + key_bytes
    whole = head + payload_bytes
    if len(frame) < whole:
        raise DamagedBlock(f"truncated: {len(frame)} of {whole} bytes")
    if len(frame) > whole:
        raise DamagedBlock(f"junk appended: {len(frame)} bytes where {whole} were written")
    stored_key = bytes(frame[_FIXED_BYTES:head])
    payload = frame[head:]
    if _checksum(fields, stored_key, payload) != frame[_FIELDS.size : _FIXED_BYTES]:
        raise DamagedBlock("checksum mismatch")
    if stored_key != key:
        raise DamagedBlock(f"it is the block {stored_key.hex()}, not {key.hex()}")
    if payload_bytes != size:
        raise DamagedBlock(f"a block of {payload_bytes} bytes where {size} were expected")
    return payload


def frame_bytes(key: OffloadKey, size: int) -> int:
    """Length in bytes of the frame of the block `key` with a payload of `size` bytes."""
    return _FIXED_BYTES + len(key) + size


def _checksum(fields: bytes | memoryview, key: bytes, payload: memoryview) -> bytes:
    state = xxhash.xxh3_128(fields)
    state.update(key)
    state.update(payload)
    return state.digest()
