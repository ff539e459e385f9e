"""The payload of a block: keyed, repeatable, and like nothing else."""

from __future__ import annotations

import hashlib

import pytest

from kvtier.keys import make_offload_key
from kvtier.workload import PayloadStream

KEY = make_offload_key(bytes(range(32)), 0)


def test_the_stream_is_shake_128_of_seed_and_key():
    expected = hashlib.shake_128(b"kvtier payload 7\x00" + KEY).digest(100)
    assert PayloadStream(7, 100)(KEY) == expected


def test_the_same_seed_and_key_give_the_same_bytes_each_time():
    stream = PayloadStream(0, 4096)
    assert stream(KEY) == stream(KEY) == PayloadStream(0, 4096)(KEY)


@pytest.mark.parametrize("size", [1, 8192, 10_001])
def test_a_payload_is_exactly_one_block_long(size):
    assert len(PayloadStream(0, size)(KEY)) == size


def test_another_seed_another_group_or_another_hash_give_other_bytes():
    others = [
        PayloadStream(1, 64)(KEY),
        PayloadStream(-1, 64)(KEY),
        PayloadStream(11, 64)(KEY),
        PayloadStream(0, 64)(make_offload_key(bytes(range(32)), 1)),
        PayloadStream(0, 64)(make_offload_key(bytes(32), 0)),
        PayloadStream(0, 64)(KEY),
    ]
    assert len(set(others)) == len(others)


def test_no_part_of_a_payload_repeats():
    payload = PayloadStream(0, 8192)(KEY)
    pieces = [payload[start : start + 16] for start in range(0, 8192, 16)]
    assert len(set(pieces)) == len(pieces)
