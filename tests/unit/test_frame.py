"""Frames: the layout byte by byte, and that no alteration of one is taken for the block."""

from __future__ import annotations

import re

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvtier.errors import DamagedBlock
from kvtier.keys import OffloadKey
from kvtier.tiers.frame import decode, encode, frame_bytes

KEY = OffloadKey(b"\x11\x22\x33\x44\x00\x00\x00\x07")
OTHER = OffloadKey(b"\x11\x22\x33\x44\x00\x00\x00\x08")
PAYLOAD = b"twenty bytes of data"


def frame_of(key=KEY, payload=PAYLOAD, *, magic=b"KVTB", version=1):
    """A frame as the table at the top of the module describes it."""
    fields = magic + version.to_bytes(2, "big") + len(key).to_bytes(2, "big")
    fields += len(payload).to_bytes(8, "big")
    return fields + xxhash.xxh3_128_digest(fields + key + payload) + key + payload


def written(key=KEY, payload=PAYLOAD):
    return b"".join(encode(key, memoryview(payload)))


def refusal(raw, key=KEY, size=20):
    with pytest.raises(DamagedBlock) as caught:
        decode(key, raw, size)
    return str(caught.value)


def test_a_frame_is_laid_out_as_documented():
    assert written() == frame_of()
    assert written()[:16].hex() == "4b565442" + "0001" + "0008" + "0000000000000014"
    assert frame_bytes(KEY, len(PAYLOAD)) == len(frame_of()) == 16 + 16 + 8 + 20


@given(st.binary(max_size=80), st.binary(max_size=300))
def test_a_block_comes_back_as_it_was(name, payload):
    key = OffloadKey(name)
    for kind in (bytes, bytearray, memoryview):
        assert bytes(decode(key, kind(written(key, payload)), len(payload))) == payload
    assert frame_bytes(key, len(payload)) == len(written(key, payload))


def test_neither_way_copies_the_payload():
    slot = memoryview(bytearray(PAYLOAD))
    assert encode(KEY, slot).payload is slot
    raw = bytearray(written())
    assert decode(KEY, raw, len(PAYLOAD)).obj is raw


def test_every_flipped_bit_is_found():
    whole = written()
    for bit in range(8 * len(whole)):
        raw = bytearray(whole)
        raw[bit // 8] ^= 1 << bit % 8
        refusal(raw)


def test_every_changed_byte_of_the_payload_is_a_checksum_mismatch():
    whole = written()
    for at in range(len(whole) - len(PAYLOAD), len(whole)):
        for change in range(1, 256):
            raw = bytearray(whole)
            raw[at] ^= change
            assert refusal(raw) == "checksum mismatch"


@pytest.mark.parametrize("length", range(16 + 16 + 8 + 20))
def test_every_truncation_is_called_one(length):
    assert refusal(written()[:length]).startswith("truncated: ")


@pytest.mark.parametrize("junk", [b"\0", b"x" * 7, b"\n", frame_of()])
def test_junk_behind_the_block_is_called_that(junk):
    assert refusal(written() + junk).startswith("junk appended: ")


@given(st.binary(max_size=120))
def test_what_is_no_frame_is_refused(raw):
    refusal(raw)


def test_a_whole_block_of_another_key_is_refused_by_name():
    said = refusal(written(OTHER))
    assert said == f"it is the block {OTHER.hex()}, not {KEY.hex()}"
    assert KEY.hex() in refusal(written(OffloadKey(KEY[:-1])))
    assert KEY.hex() in refusal(written(OffloadKey(b"")))


@pytest.mark.parametrize("size", [0, len(PAYLOAD) - 1, len(PAYLOAD) + 1, 1 << 40])
def test_a_whole_block_of_another_size_is_refused(size):
    assert refusal(written(), size=size) == f"a block of 20 bytes where {size} were expected"


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_another_version_is_refused_by_number(version):
    assert refusal(frame_of(version=version)).startswith(f"frame version {version},")


@pytest.mark.parametrize("magic", [b"kvtb", b"\0\0\0\0", b"\x7fELF"])
def test_other_magic_is_not_a_block(magic):
    assert refusal(frame_of(magic=magic)).startswith(f"not a block: it begins with {magic!r}")


def test_lengths_are_checked_before_anything_is_read_at_them():
    huge = frame_of()[:8] + b"\xff" * 8 + frame_of()[16:]
    assert re.match(r"truncated: 60 of \d{20} bytes", refusal(huge))


def test_where_the_key_ends_is_part_of_the_checksum():
    """The same bytes cut elsewhere are another block."""
    sums = {written(OffloadKey(b"abcdef"[:n]), b"abcdef"[n:])[16:32] for n in range(7)}
    assert len(sums) == 7
