"""Workloads: what is read from traces and texts, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from kvtier.errors import BadInput
from kvtier.keys import ROOT_HASH, hash_block
from kvtier.workload import (
    MAX_LINE_BYTES,
    TEXT_BLOCK_BYTES,
    SessionWorkload,
    open_workload,
    python_topics,
    read_directory,
    read_trace,
)

AS_ROOT = os.geteuid() == 0


def line(**changes) -> str:
    fields = {"timestamp": 0, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1]}
    return json.dumps(fields | changes)


GOOD = line()


@pytest.fixture
def trace(tmp_path: Path):
    path = tmp_path / "trace.jsonl"

    def write(*lines: str | bytes) -> Path:
        path.write_bytes(
            b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines)
        )
        return path

    return write


# -- traces --------------------------------------------------------------------------------


def test_a_trace_gives_one_prompt_a_line_with_one_block_an_id(trace):
    prompts = list(read_trace(trace(line(hash_ids=[7, 9]), line(hash_ids=[7]))))
    assert [len(prompt.block_hashes) for prompt in prompts] == [2, 1]
    assert len({prompt.req_id for prompt in prompts}) == 2


def test_equal_ids_have_equal_hashes_and_different_ids_different_ones(trace):
    first, second = read_trace(trace(line(hash_ids=[7, 9]), line(hash_ids=[9, 2**64 - 1])))
    assert first.block_hashes[1] == second.block_hashes[0]
    assert len({*first.block_hashes, *second.block_hashes}) == 3


def test_the_hash_of_an_id_does_not_vary_with_the_run(trace):
    (prompt,) = read_trace(trace(line(hash_ids=[258])))
    assert prompt.block_hashes == (
        hashlib.sha256(bytes(32) + bytes([0, 0, 0, 0, 0, 0, 1, 2])).digest(),
    )


def test_a_workload_can_be_iterated_again(trace):
    workload = read_trace(trace(line(hash_ids=[7, 9]), GOOD))
    assert list(workload) == list(workload)
    assert len(workload) == len(list(workload)) == 2


def test_blank_lines_windows_line_ends_a_byte_order_mark_and_further_fields_are_fine(trace):
    path = trace(b"\xef\xbb\xbf" + line(type="chat").encode() + b"\r", b"", b"  ", GOOD)
    assert len(read_trace(path)) == 2


def test_a_last_line_without_line_end_is_read(tmp_path):
    (tmp_path / "t").write_text(GOOD + "\n" + GOOD)
    assert len(read_trace(tmp_path / "t")) == 2


def test_a_limit_keeps_the_first_requests_but_all_lines_are_checked(trace):
    assert len(read_trace(trace(GOOD, GOOD, GOOD), limit=2)) == 2
    with pytest.raises(BadInput, match=":3: not JSON"):
        read_trace(trace(GOOD, GOOD, "{"), limit=1)


def test_different_trace_files_have_different_namespaces(tmp_path):
    """Ids are counted per file, so equal ids of two files are different blocks."""
    for name in "ab":
        (tmp_path / name).write_text(GOOD)
    assert read_trace(tmp_path / "a").model != read_trace(tmp_path / "b").model


def test_different_traces_of_one_name_have_different_namespaces(tmp_path):
    for folder, ids in (("a", [1]), ("b", [2]), ("c", [1])):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "trace").write_text(line(hash_ids=ids))
    first, other, same = (read_trace(tmp_path / folder / "trace").model for folder in "abc")
    assert first == same
    assert first != other


def test_the_namespace_does_not_depend_on_how_much_of_the_trace_is_replayed(trace):
    path = trace(GOOD, GOOD.replace("1000", "1001"))
    assert read_trace(path).model == read_trace(path, limit=1).model


@pytest.mark.parametrize("limit", [10**20, 2**63, 2**63 - 1])
def test_a_limit_may_be_larger_than_a_machine_word(limit, trace):
    assert len(read_trace(trace(GOOD), limit=limit)) == 1
    assert len(python_topics(limit=limit)) == len(python_topics())


def test_a_path_too_long_for_the_system_is_named():
    with pytest.raises(BadInput, match="cannot be read: File name too long"):
        open_workload(Path("x" * 5000))


BAD_LINES = {
    "no JSON": ("hash_ids", "not JSON", "one JSON object"),
    "half a line": (GOOD[:-9], "not JSON", "one JSON object"),
    "two objects": (GOOD + GOOD, "not JSON", "one JSON object"),
    "a list": ("[1, 2]", "no JSON object", "one JSON object"),
    "a number": ("17", "no JSON object", "one JSON object"),
    "null": ("null", "no JSON object", "one JSON object"),
    "deep nesting": ("[" * 200_000, "not JSON", "one JSON object"),
    "a huge number": ("9" * 10_000, "not JSON", "one JSON object"),
    "binary": (b"\x80\x03\xff\x00\xfe", "not UTF-8", "one JSON object"),
    "zero bytes": (b"\x00" * 64, "not JSON", "one JSON object"),
    "gzip": (bytes.fromhex("1f8b0800000000000003ab56"), "not UTF-8", "one JSON object"),
    "no timestamp": (
        json.dumps({"input_length": 1, "output_length": 1, "hash_ids": []}),
        "timestamp is missing",
        '"timestamp"',
    ),
    "no input_length": (
        json.dumps({"timestamp": 1, "output_length": 1, "hash_ids": []}),
        "input_length is missing",
        '"input_length"',
    ),
    "no output_length": (
        json.dumps({"timestamp": 1, "input_length": 1, "hash_ids": []}),
        "output_length is missing",
        '"output_length"',
    ),
    "no hash_ids": (
        json.dumps({"timestamp": 1, "input_length": 1, "output_length": 1}),
        "hash_ids is missing",
        '"hash_ids"',
    ),
    "NaN": (GOOD.replace('"timestamp": 0', '"timestamp": NaN'), "NaN", "one JSON object"),
    "NaN length": (
        GOOD.replace('"input_length": 1000', '"input_length": NaN'),
        "NaN",
        "one JSON object",
    ),
    "infinity": (
        GOOD.replace('"timestamp": 0', '"timestamp": -Infinity'),
        "-Infinity",
        "one JSON object",
    ),
    "too big for a float": (
        GOOD.replace('"timestamp": 0', '"timestamp": 1e999'),
        "timestamp is Infinity",
        "a finite number",
    ),
    "too big for a float, and an integer": (line(timestamp=10**400), "timestamp is 1000", "finite"),
    "as far below zero": (line(timestamp=-(10**400)), "timestamp is -1000", "a finite number"),
    "length far below zero": (line(input_length=-(10**400)), "input_length is -1000", "0 or more"),
    "id of 1300 bits": (line(hash_ids=[10**400]), "hash_ids[0] is 1000", "an integer from 0"),
    "negative timestamp": (line(timestamp=-1), "timestamp is -1", "0 or more"),
    "text timestamp": (line(timestamp="0"), 'timestamp is "0"', "milliseconds"),
    "bool timestamp": (line(timestamp=True), "timestamp is true", "milliseconds"),
    "null timestamp": (line(timestamp=None), "timestamp is null", "milliseconds"),
    "negative length": (line(input_length=-5), "input_length is -5", "0 or more"),
    "float length": (line(input_length=5.0), "input_length is 5.0", "an integer"),
    "bool length": (line(output_length=False), "output_length is false", "an integer"),
    "text length": (line(output_length="5"), 'output_length is "5"', "an integer"),
    "hash_ids a number": (line(hash_ids=3), "hash_ids is 3", "a list"),
    "hash_ids an object": (line(hash_ids={"0": 1}), "hash_ids is {", "a list"),
    "hash_ids null": (line(hash_ids=None), "hash_ids is null", "a list"),
    "text id": (line(hash_ids=[0, "1"]), 'hash_ids[1] is "1"', "an integer from 0"),
    "float id": (line(hash_ids=[0.0]), "hash_ids[0] is 0.0", "an integer from 0"),
    "bool id": (line(hash_ids=[5, True]), "hash_ids[1] is true", "an integer from 0"),
    "nested id": (line(hash_ids=[[0]]), "hash_ids[0] is [0]", "an integer from 0"),
    "negative id": (line(hash_ids=[1, 2, -3]), "hash_ids[2] is -3", "an integer from 0"),
    "id of 65 bits": (line(hash_ids=[2**64]), f"hash_ids[0] is {2**64}", "an integer from 0"),
    "repeated id": (line(hash_ids=[4, 5, 6, 5]), "hash_ids has 5 twice", "distinct"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_bad_line_is_named_with_file_line_problem_and_expectation(name, trace):
    bad, problem, expected = BAD_LINES[name]
    path = trace(GOOD, bad, GOOD)
    with pytest.raises(BadInput) as caught:
        read_trace(path)
    assert caught.value.where == f"{path}:2"
    assert problem in caught.value.problem
    assert expected in (caught.value.expected or "")
    assert len(str(caught.value)) < len(str(path)) + 200
    assert "\n" not in str(caught.value)


def test_a_line_without_end_is_given_up_on(trace):
    path = trace(GOOD, b" " * (MAX_LINE_BYTES + 1))
    with pytest.raises(BadInput, match=":2: the line is too long"):
        read_trace(path)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_an_endless_file_is_given_up_on():
    with pytest.raises(BadInput, match=":1: the line is too long"):
        read_trace(Path("/dev/zero"))


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_a_trace_without_requests_is_refused(content, tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="holds no request"):
        read_trace(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"nowhere\.jsonl: cannot be read: No such file"):
        open_workload(tmp_path / "nowhere.jsonl")


@pytest.mark.skipif(AS_ROOT, reason="root may read everything")
def test_an_unreadable_file_is_named(trace, tmp_path):
    path = trace(GOOD)
    path.chmod(0)
    with pytest.raises(BadInput, match=r"trace\.jsonl: cannot be read: Permission denied"):
        open_workload(path)


# -- text ----------------------------------------------------------------------------------


def text(blocks: int, seed: int = 0) -> bytes:
    return "".join(f"{seed:03}{i:05} " for i in range(blocks * TEXT_BLOCK_BYTES)).encode()[
        : blocks * TEXT_BLOCK_BYTES
    ]


def sessions(workload) -> dict[str, list[tuple[bytes, ...]]]:
    found: dict[str, list[tuple[bytes, ...]]] = {}
    for prompt in workload:
        found.setdefault(prompt.req_id.split("t")[0], []).append(prompt.block_hashes)
    return found


def test_blocks_are_chained_from_the_start_of_the_prompt():
    content = text(3)
    *_, last = SessionWorkload("t", [content])
    parent, expected = ROOT_HASH, []
    for start in (0, 1, 2, 0, 1, 2):  # the system prompt is the head of the first text
        block = content[start * TEXT_BLOCK_BYTES : (start + 1) * TEXT_BLOCK_BYTES]
        parent = hash_block(parent, block)
        expected.append(parent)
    assert list(last.block_hashes) == expected


def test_every_turn_is_the_turn_before_plus_more_text():
    for turns in sessions(python_topics()).values():
        for shorter, longer in pairwise(turns):
            assert longer[: len(shorter)] == shorter
            assert len(longer) > len(shorter)


def test_all_sessions_begin_with_one_system_prompt():
    texts = [b"short", *(text(20, number) for number in range(5))]
    openings = [turns[0] for turns in sessions(SessionWorkload("t", texts)).values()]
    assert len(openings) == 10
    assert len({opening[:8] for opening in openings}) == 1
    assert len({opening[:9] for opening in openings}) == 5


def test_every_text_is_asked_to_its_last_whole_block_by_two_sessions():
    texts = [text(20, 1), text(9, 2) + b"tail", text(1, 3), b"short"]
    lengths = sorted(len(turns[-1]) for turns in sessions(SessionWorkload("t", texts)).values())
    assert lengths == [8 + 1, 8 + 1, 8 + 9, 8 + 9, 8 + 20, 8 + 20]


def test_a_long_text_is_asked_in_chapters_so_that_prompts_stay_bounded():
    asked = [prompt.block_hashes for prompt in SessionWorkload("t", [text(1000)])]
    assert max(map(len, asked)) == 8 + 128
    assert len({block_hash for prompt in asked for block_hash in prompt}) == 8 + 1000


def test_sessions_are_interleaved():
    order = [prompt.req_id.split("t")[0] for prompt in python_topics()]
    changes = sum(a != b for a, b in pairwise(order))
    assert changes > len(order) / 2


def test_the_seed_decides_the_order_and_nothing_else():
    texts = [text(20, i) for i in range(5)]
    runs = [list(SessionWorkload("t", texts, seed=seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    blocks = [{h for p in run for h in p.block_hashes} for run in runs]
    assert blocks[0] == blocks[2]


def test_pythons_topics_have_a_good_mix_of_old_and_new_blocks():
    seen: set[bytes] = set()
    total = again = 0
    for prompt in python_topics():
        total += len(prompt.block_hashes)
        again += len(seen.intersection(prompt.block_hashes))
        seen.update(prompt.block_hashes)
    assert len(seen) > 1000
    assert 0.5 < again / total < 0.95


def test_a_python_without_its_topics_is_bad_input(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(BadInput, match="expected a TRACE to replay instead"):
        open_workload(None)


def test_a_limit_keeps_the_first_prompts():
    assert list(python_topics(limit=7)) == list(python_topics())[:7]


def test_a_directory_is_read_in_the_order_of_names_whatever_the_disk_says(tmp_path):
    (tmp_path / "sub").mkdir()
    names = ["b.txt", "sub/a.txt", "a.txt"]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(text(10, number))
    expected = SessionWorkload("t", [text(10, 2), text(10, 0), text(10, 1)])
    assert list(read_directory(tmp_path)) == list(expected)
    assert list(open_workload(tmp_path)) == list(expected)


def test_hidden_files_and_folders_are_passed_over(tmp_path):
    (tmp_path / "a.txt").write_bytes(text(2))
    (tmp_path / ".git").mkdir()
    for name in (".hidden", ".git/blob"):
        (tmp_path / name).write_bytes(b"\x00\xff")
    assert len(read_directory(tmp_path)) > 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(600), "byte 8 is zero"),
        (b"caf\xe9 " * 100, "byte 3 is no UTF-8"),
    ],
)
def test_a_binary_file_in_a_directory_is_named(content, problem, tmp_path):
    (tmp_path / "a.txt").write_bytes(text(3))
    (tmp_path / "b.bin").write_bytes(content)
    with pytest.raises(BadInput, match=f"b.bin: {problem}; expected UTF-8 text"):
        read_directory(tmp_path)


def test_a_pipe_in_a_directory_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="pipe: is not a regular file"):
        read_directory(tmp_path)


def test_a_dangling_link_in_a_directory_is_named(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    with pytest.raises(BadInput, match="link: cannot be read: No such file"):
        read_directory(tmp_path)


@pytest.mark.parametrize("files", [{}, {"a.txt": b""}, {"a.txt": b"x" * (TEXT_BLOCK_BYTES - 1)}])
def test_a_directory_without_one_block_of_text_is_refused(files, tmp_path):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match="holds no whole block of text"):
        read_directory(tmp_path)


@pytest.mark.skipif(AS_ROOT, reason="root may read everything")
def test_an_unreadable_directory_is_named(tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0)
    with pytest.raises(BadInput, match="locked: cannot be read: Permission denied"):
        read_directory(folder)


def test_the_order_does_not_depend_on_hash_seeds(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.txt").write_bytes(text(30, number))
    program = (
        "import sys, pathlib, hashlib, kvtier.workload as w\n"
        "found = [list(w.read_directory(pathlib.Path(sys.argv[1]), seed=3)),"
        " list(w.python_topics())]\n"
        "print(hashlib.sha256(repr(found).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            timeout=30,
        ).stdout
        for hash_seed in "012"
    }
    assert len(digests) == 1
