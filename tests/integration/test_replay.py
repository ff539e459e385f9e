"""Replays: counted right, repeatable, and right under faults."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtier.errors import BadInput, UsageError
from kvtier.keys import Namespace, make_offload_key
from kvtier.replay import (
    FaultRates,
    ReplayConfig,
    ReplayObservers,
    ReplayReport,
    broken_laws,
    replay,
    replaying,
)
from kvtier.replay.faults import FaultyStore
from kvtier.replay.machine import PretendEngine, remove_folder
from kvtier.request import ReqContext
from kvtier.runtime import ThreadRuntime, VirtualRuntime
from kvtier.scans import KVGroup
from kvtier.scheduler import Request
from kvtier.telemetry.logs import LoggingObserver, json_lines
from kvtier.tiers.filesystem import FilesystemStore
from kvtier.tiers.frame import encode
from kvtier.tiers.host import CPUOffloadingManager
from kvtier.tiers.memory import MemoryStore
from kvtier.tiers.registry import open_tier
from kvtier.tiers.store import StoreTier
from kvtier.workload import PayloadStream, Prompt, Workload, python_topics, read_trace
from tests.support.reuse_oracle import reused_by_tier

SMALL = ReplayConfig(host_blocks=256, block_bytes=64, tiers=("memory",))


class Prompts(Workload):
    """Prompts given as lists of block numbers."""

    name = model = "prompts"

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self.prompts = prompts

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        for number, prompt in enumerate(self.prompts):
            yield Prompt(str(number), tuple(block.to_bytes(32, "big") for block in prompt))


def config(**changes) -> ReplayConfig:
    return dataclasses.replace(SMALL, **changes)


def run(workload: Workload, order: int = 0, **changes) -> ReplayReport:
    """A deterministic replay that breaks no law."""
    report = replay(config(**changes), workload, VirtualRuntime(order))
    assert report.violations == ()
    return report


def ids_of(path: Path) -> list[list[int]]:
    return [json.loads(line)["hash_ids"] for line in path.read_text().splitlines()]


# -- against an independent count ----------------------------------------------------------


@pytest.mark.parametrize("slots", [237, 1000])
def test_a_real_trace_reuses_what_an_independent_count_says(slots, traces):
    path = traces / "mooncake_conversation_smoke_500.jsonl"
    report = run(read_trace(path), host_blocks=slots)
    primary, slow = reused_by_tier(ids_of(path), slots)
    assert report.hits == {"0:primary": primary, "1:memory": slow}
    assert primary + slow == 2283  # blocks at the start of a prompt that were seen before
    assert report.promotions["no_room"] == report.stores["skipped"] == 0


def test_a_real_trace_does_so_on_real_files_and_threads(traces):
    path = traces / "mooncake_conversation_smoke_500.jsonl"
    report = replay(config(tiers=(), host_blocks=237), read_trace(path, limit=120))
    primary, slow = reused_by_tier(ids_of(path)[:120], 237)
    assert report.hits == {"0:primary": primary, "1:fs": slow}
    assert report.violations == ()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("slots", [244, 5000])
def test_a_long_trace_reuses_what_an_independent_count_says(slots, traces):
    path = traces / "mooncake_conversation_first1900k.jsonl"
    report = replay(config(tiers=(), host_blocks=slots), read_trace(path))
    primary, slow = reused_by_tier(ids_of(path), slots)
    assert report.hits == {"0:primary": primary, "1:fs": slow}
    assert primary + slow == 65_785
    assert report.violations == ()


@st.composite
def prompts_and_slots(draw) -> tuple[list[list[int]], int]:
    """Prompts in any order, sharing blocks anywhere, and a primary that holds the longest."""
    prompt = st.lists(st.integers(0, 12), unique=True, max_size=8)
    prompts = draw(st.lists(prompt, min_size=1, max_size=12))
    return prompts, max(1, *map(len, prompts)) + draw(st.integers(0, 4))


@settings(max_examples=150)
@given(prompts_and_slots(), st.integers(0, 3))
def test_any_prompts_reuse_what_an_independent_count_says(case, order):
    prompts, slots = case
    report = run(Prompts(prompts), order, host_blocks=slots)
    assert tuple(report.hits.values()) == reused_by_tier(prompts, slots)


def test_sessions_reuse_what_an_independent_count_says():
    workload = python_topics(seed=5, limit=200)
    hashes = [prompt.block_hashes for prompt in workload]
    assert tuple(run(workload).hits.values()) == reused_by_tier(hashes, 256)


# -- every configuration -------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"policy": "arc"},
        {"hybrid": True},
        {"hybrid": True, "host_blocks": 20, "concurrency": 4},
        {"tiers": ("memory", "memory", "memory")},
        {"tiers": ()},
        {"concurrency": 7},
        {"concurrency": 64, "slow_backend": 0.005},
        {"concurrency": 9, "host_blocks": 10},
        {"host_blocks": 1},
        {"block_bytes": 1},
        {"seed": -3},
        {"deadline": 0.0001, "slow_backend": 0.1, "concurrency": 5},
    ],
    ids=str,
)
def test_all_laws_hold_for(changes):
    report = run(python_topics(limit=80), **changes)
    assert report.requests == 80
    assert not report.interrupted
    assert report.bytes_verified > 0


def test_every_tier_gets_every_block_and_one_of_them_gives_it_back():
    prompts = [[1, 2], [3, 4], [1, 2]]
    report = run(Prompts(prompts), host_blocks=2, tiers=("memory", "memory"))
    assert report.stores["ok"] == 4
    assert report.hits["0:primary"] == 0
    assert report.hits["1:memory"] + report.hits["2:memory"] == 2


def test_every_hit_is_read_back_and_compared():
    report = run(python_topics(limit=100))
    assert report.bytes_verified == 64 * sum(report.hits.values())


def test_requests_in_flight_together_share_probes():
    """Eight identical prompts at once, and a tier that answers late."""
    prompts = [[1, 2, 3]] * 8
    report = run(Prompts(prompts), concurrency=8, slow_backend=0.01)
    assert (report.probes_issued, report.probes_joined, report.backend_calls) == (3, 21, 1)


def test_one_at_a_time_means_that_nothing_is_shared_or_skipped():
    report = run(python_topics(limit=100))
    assert report.probes_joined == report.stores["skipped"] == 0
    assert report.deferrals["store"] == 0


def test_an_engine_that_computes_in_no_time_does_not_outrun_the_tiers():
    """Sixteen prompts of 8 new blocks at once and room for 16: all are stored all the same."""
    prompts = [list(range(8 * n, 8 * n + 8)) for n in range(16)]
    report = run(Prompts(prompts), concurrency=16, host_blocks=16)
    assert report.stores["skipped"] == 0
    assert report.stores["ok"] == 16


def test_a_request_that_needs_little_room_does_not_overtake_one_that_waits_for_much():
    primary = CPUOffloadingManager(num_blocks=4, block_bytes=1)
    engine = PretendEngine(
        primary, PayloadStream(0, 1), [KVGroup(0)], crowded=lambda: True, ended=print
    )
    primary.prepare_store(KEYS[:3], CTX)  # on their way: one slot is left
    large, small = (Request(ReqContext(str(n)), [bytes([n, i]) for i in range(n)]) for n in (2, 1))
    for request in (large, small):
        engine.waiting[request.ctx.req_id] = None
    assert [engine.compute(large), engine.compute(small)] == [False, False]
    primary.on_schedule_end()
    assert [engine.compute(small), engine.compute(large)] == [True, False]


def test_a_prompt_longer_than_the_primary_is_stored_as_far_as_it_fits():
    report = run(Prompts([list(range(10)), list(range(10))]), host_blocks=4)
    assert report.hits == {"0:primary": 4, "1:memory": 0}
    assert report.misses["absent"] == 2
    assert report.stores["skipped"] > 0


def test_a_deadline_turns_slow_answers_into_misses():
    prompts = [[1, 2], [3, 4], [1, 2]]
    settings = config(host_blocks=2, slow_backend=0.2, deadline=0.001)
    report = replay(settings, Prompts(prompts), ThreadRuntime())
    assert report.misses["deadline"] == 3
    assert report.violations == ()
    assert sum(report.hits.values()) == 0


# -- on disk -------------------------------------------------------------------------------


def test_a_directory_that_is_named_keeps_its_blocks_for_the_next_run(tmp_path):
    workload, tiers = python_topics(limit=10), (f"fs:{tmp_path / 'kv'}",)
    blocks = {h for prompt in workload for h in prompt.block_hashes}
    first = run(workload, tiers=tiers)
    again = run(workload, tiers=tiers)
    assert sum(first.misses.values()) == len(blocks)
    assert sum(again.misses.values()) == 0
    assert again.hits["1:fs"] == len(blocks)


def test_another_seed_or_block_size_does_not_meet_the_blocks_of_the_first_run(tmp_path):
    workload, tiers = python_topics(limit=10), (f"fs:{tmp_path}",)
    first = run(workload, tiers=tiers)
    for changes in ({"seed": 1}, {"block_bytes": 65}):
        assert run(workload, tiers=tiers, **changes).misses == first.misses


def test_the_temporary_directory_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen = []
    replay(
        config(tiers=()),
        python_topics(limit=5),
        progress=lambda _: seen.append([*tmp_path.glob("*")]),
    )
    assert all(len(folders) == 1 for folders in seen)
    assert seen
    assert list(tmp_path.glob("*")) == []


def test_a_tier_that_cannot_be_opened_leaves_nothing_behind(tmp_path):
    (tmp_path / "file").write_text("")
    for bad in ("tape", f"fs:{tmp_path}/file", f"fs:{tmp_path}/file/deeper", "fs:", "memory:8"):
        with pytest.raises(BadInput):
            run(python_topics(limit=1), tiers=(f"fs:{tmp_path}/new", bad))
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


def opened_by_another(root: Path, namespace: Namespace) -> subprocess.Popen[str]:
    """Another process that has `root` open as a tier until its standard input ends."""
    code = """
import sys
from kvtier.keys import Namespace
from kvtier.tiers.filesystem import FilesystemStore
store = FilesystemStore(sys.argv[1], Namespace(sys.argv[2], int(sys.argv[3])))
print("open", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, root, namespace.model, str(namespace.block_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


@pytest.mark.parametrize("theirs", ["a block", "an open store", "something else"])
def test_a_directory_that_somebody_else_uses_by_now_is_left_to_them(tmp_path, monkeypatch, theirs):
    """Nothing was there when the tiers were opened; by the time one is refused, there is."""
    workload = python_topics(limit=1)
    namespace = Namespace(workload.model, SMALL.block_bytes)
    directory = tmp_path / "new" / namespace.digest
    others: list[subprocess.Popen[str]] = []

    def refuse(spec, setup):
        if spec != "tape":
            return open_tier(spec, setup)
        if theirs == "an open store":
            others.append(opened_by_another(tmp_path / "new", namespace))
        else:
            (directory / "aa").mkdir()
            (directory / "aa" / ("aabb.kv" if theirs == "a block" else "precious")).touch()
        raise BadInput("tier 'tape'", "refused")

    monkeypatch.setattr("kvtier.replay.machine.open_tier", refuse)
    before: list[Path] = []
    with pytest.raises(BadInput, match="refused"):
        run(workload, tiers=(f"fs:{tmp_path}/new", "tape"))
    for other in others:
        other.communicate("")
    before = [path for path in directory.rglob("*") if path.is_file()]
    assert directory / "namespace.json" in before
    assert len(before) > 1


def test_a_write_that_outlives_the_run_does_not_bring_the_temporary_folder_back(
    tmp_path, monkeypatch
):
    """A put hangs through shutdown and removal, and goes on when all is over."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    go_on, hanging, ended = threading.Event(), threading.Event(), threading.Event()
    put = FilesystemStore.put

    def late(self, key, frame, req_context):
        hanging.set()
        go_on.wait(30)
        try:
            put(self, key, frame, req_context)
        finally:
            ended.set()

    monkeypatch.setattr(FilesystemStore, "put", late)
    report = replay(config(tiers=()), python_topics(limit=3), stop=hanging.is_set)
    assert report.interrupted
    assert report.violations == ()
    assert list(tmp_path.iterdir()) == []
    go_on.set()
    assert ended.wait(30)
    assert list(tmp_path.iterdir()) == []


def test_what_a_write_puts_into_the_folder_while_it_is_removed_goes_too(tmp_path, monkeypatch):
    folder, late = tmp_path / "folder", [3]
    (folder / "aa").mkdir(parents=True)
    rmdir = os.rmdir

    def contended(path, *, dir_fd=None):
        if late and str(path).endswith("folder"):
            (folder / f"late{late.pop()}.part").touch()
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", contended)
    remove_folder(folder)
    assert late == []
    assert not folder.exists()


def test_a_folder_goes_also_where_no_thread_can_be_started(tmp_path, monkeypatch):
    def no_thread(self):
        raise RuntimeError("can't start new thread")

    (tmp_path / "folder" / "aa").mkdir(parents=True)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    remove_folder(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_tier_that_raises_in_shutdown_does_not_keep_the_report_back(monkeypatch):
    def refuse(self, timeout=5.0):
        raise RuntimeError("no")

    monkeypatch.setattr(StoreTier, "shutdown", refuse)
    assert replay(config(), python_topics(limit=2), VirtualRuntime()).requests == 2


def test_no_thread_is_left():
    before = set(threading.enumerate())
    replay(config(tiers=("memory", "memory")), python_topics(limit=5))
    with pytest.raises(BadInput):
        replay(config(tiers=("memory", "tape")), python_topics(limit=5))
    assert set(threading.enumerate()) <= before


# -- repeatable ----------------------------------------------------------------------------

BUSY = config(
    tiers=("memory", "memory"),
    concurrency=6,
    host_blocks=48,
    hybrid=True,
    slow_backend=0.002,
    deadline=0.05,
    faults=FaultRates(0.05, 0.05, 0.05, 0.05),
)


def report_and_log(seed: int) -> tuple[str, str]:
    stream = io.StringIO()
    report = replay(
        BUSY,
        python_topics(limit=60),
        VirtualRuntime(seed),
        observers=ReplayObservers(LoggingObserver(json_lines(stream))),
    )
    return json.dumps(report.as_json()), stream.getvalue()


def test_the_same_seed_gives_the_same_report_and_log_byte_for_byte():
    first, second, other = report_and_log(1), report_and_log(1), report_and_log(2)
    assert first == second
    assert first[1] != other[1]
    assert first[1].count("\n") > 1000


def test_on_real_threads_and_one_at_a_time_only_waiting_varies():
    """The fields that are left out are those that `ReplayReport` says vary."""
    faults = FaultRates(0.05, 0.05, 0.05, 0.05)
    reports = []
    for runtime in (ThreadRuntime(), ThreadRuntime(), VirtualRuntime(), VirtualRuntime(1)):
        report = replay(config(faults=faults), python_topics(limit=150), runtime).as_json()
        reports.append({k: v for k, v in report.items() if k not in VARYING})
    assert all(report == reports[0] for report in reports)


VARYING = {"lookups", "deferrals", "steps", "wall_s"}


def test_neither_report_nor_log_depends_on_hash_seeds():
    program = (
        "import hashlib, tests.integration.test_replay as t\n"
        "print(hashlib.sha256(repr(t.report_and_log(1)).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            timeout=50,
            text=True,
        ).stdout.splitlines()[-1]
        for hash_seed in "01"
    }
    assert len(digests) == 1


# -- faults --------------------------------------------------------------------------------


def test_a_back_end_that_fails_and_lies_is_survived():
    rates = FaultRates(corrupt=0.05, probe_error=0.05, load_error=0.05, store_error=0.05)
    report = run(python_topics(), host_blocks=200, faults=rates)
    assert report.mismatches == 0
    assert report.lookup_errors > 0
    assert report.promotions["partial"] + report.promotions["failed"] > 0
    assert report.stores["partial"] + report.stores["failed"] > 0
    assert report.misses["load_failed"] > 0
    assert report.failed_blocks["1:memory"].keys() == {"DamagedBlock", "OSError EIO"}


THRICE = Prompts([[1, 2], [3, 4], [1, 2]])


def test_corrupt_blocks_are_never_served():
    report = run(THRICE, host_blocks=2, faults=FaultRates(corrupt=1.0))
    assert report.hits == {"0:primary": 0, "1:memory": 0}
    assert report.failed_blocks == {"1:memory": {"DamagedBlock": 2}}
    assert report.promotions["failed"] == 1


def test_failed_questions_are_misses_for_that_reason():
    report = run(THRICE, host_blocks=2, faults=FaultRates(probe_error=1.0))
    assert report.lookup_errors == report.probes_issued == 6
    assert report.misses["lookup_error"] == 3
    assert sum(report.hits.values()) == 0


def test_failed_loads_are_misses_and_tried_once():
    report = run(THRICE, host_blocks=2, faults=FaultRates(load_error=1.0))
    assert report.failed_blocks == {"1:memory": {"OSError EIO": 2}}
    assert (report.promotions["submitted"], report.misses["load_failed"]) == (1, 1)


def test_failed_stores_are_counted_and_the_blocks_absent():
    report = run(THRICE, host_blocks=2, faults=FaultRates(store_error=1.0))
    assert report.stores["failed"] == 3
    assert report.misses["absent"] == 3


KEYS = [make_offload_key(n.to_bytes(32, "big"), 0) for n in range(2000)]
CTX = ReqContext("r")


def faulty(seed: int = 0, **rates: float) -> tuple[FaultyStore, MemoryStore]:
    inner = MemoryStore()
    for key in KEYS:
        inner.put(key, encode(key, memoryview(b"payload")), CTX)
    return FaultyStore(inner, FaultRates(**rates), seed), inner


def damaged(seed: int = 0) -> list[int]:
    store, inner = faulty(seed, corrupt=0.1)
    return [n for n, key in enumerate(KEYS) if store.get(key, CTX) != inner.frames[key]]


def test_faults_come_at_their_rate_and_where_the_seed_says():
    assert 140 <= len(damaged()) <= 260  # 200 +- 4.5 standard deviations
    assert damaged(1) == damaged(1) != damaged(2)


def test_a_corrupt_block_differs_in_one_byte():
    store, inner = faulty(corrupt=1.0)
    for key in KEYS[:50]:
        got = bytes(store.get(key, CTX))
        assert sum(a != b for a, b in zip(got, inner.frames[key], strict=True)) == 1


def test_where_a_call_fails_does_not_depend_on_the_calls_before():
    """So it does not depend on which thread comes first."""

    def failures(order: list[int]) -> set[int]:
        store, _ = faulty(load_error=0.3)
        failed = set()
        for n in order:
            try:
                store.get(KEYS[n], CTX)
            except OSError:
                failed.add(n)
        return failed

    assert failures(list(range(300))) == failures(list(range(300))[::-1])


def test_a_call_that_failed_may_succeed_later():
    store, _ = faulty(load_error=0.5)
    results = set()
    for _ in range(20):
        try:
            store.get(KEYS[0], CTX)
            results.add("ok")
        except OSError:
            results.add("failed")
    assert results == {"ok", "failed"}


@pytest.mark.parametrize(
    ("spec", "rates"),
    [
        ("corrupt=0.25", FaultRates(corrupt=0.25)),
        ("load_error=1,store_error=0", FaultRates(load_error=1.0)),
        (" probe_error = 1e-3 , corrupt=.5", FaultRates(probe_error=0.001, corrupt=0.5)),
    ],
)
def test_fault_rates_are_read(spec, rates):
    assert FaultRates.parse(spec) == rates


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("", "there is no fault ''"),
        ("rot=0.1", "there is no fault 'rot'"),
        ("corrupt", "corrupt has no rate"),
        ("corrupt=", "the rate of corrupt is ''"),
        ("corrupt=often", "the rate of corrupt is 'often'"),
        ("corrupt=nan", "the rate of corrupt is 'nan'"),
        ("corrupt=-0.1", "the rate of corrupt is '-0.1'"),
        ("corrupt=1.1", "the rate of corrupt is '1.1'"),
        ("corrupt=0.1,corrupt=0.2", "corrupt is given twice"),
        ("corrupt=0.1,", "there is no fault ''"),
    ],
)
def test_nonsense_fault_rates_are_refused(spec, problem):
    with pytest.raises(BadInput) as caught:
        FaultRates.parse(spec)
    assert caught.value.problem == problem


@pytest.mark.parametrize(
    "changes",
    [
        {"host_blocks": 0},
        {"block_bytes": -1},
        {"concurrency": 0},
        {"slow_backend": -0.1},
        {"slow_backend": float("nan")},
        {"slow_backend": 1e297},
        {"slow_backend": 86_400.5},
        {"deadline": 1e297},
        {"deadline": 86_400.5},
        {"deadline": 0.0},
        {"deadline": float("inf")},
        {"policy": "mru"},
    ],
    ids=str,
)
def test_configurations_that_make_no_sense_are_refused(changes):
    with pytest.raises(UsageError):
        config(**changes)


# -- stopping ------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", [VirtualRuntime, ThreadRuntime])
def test_a_stopped_replay_reports_what_was_done_and_breaks_no_law(runtime):
    done: list[int] = []
    report = replay(
        config(concurrency=4, slow_backend=0.001),
        python_topics(),
        runtime(),
        progress=done.append,
        stop=lambda: bool(done) and done[-1] >= 50,
    )
    assert report.interrupted
    assert 50 <= report.requests < 100
    assert report.violations == ()


def test_requests_that_a_stop_cuts_short_are_counted_as_aborted():
    asked: list[None] = []

    def at_the_tenth_step() -> bool:
        asked.append(None)
        return len(asked) == 10

    report = replay(
        config(concurrency=4), python_topics(), VirtualRuntime(), stop=at_the_tenth_step
    )
    assert report.misses["aborted"] > 0
    assert report.violations == ()


class AfterAStep:
    """Stops a replay that has asked its first questions; `hurry` so many seconds later."""

    def __init__(self, runtime: ThreadRuntime, later: float = 0.0) -> None:
        self.runtime, self.later = runtime, later
        self.asked: list[float] = []

    def stop(self) -> bool:
        self.asked.append(self.runtime.now())
        return len(self.asked) > 1

    def hurry(self) -> bool:
        return self.runtime.now() - self.asked[1] >= self.later


def test_a_stopped_replay_does_not_wait_for_a_back_end_that_hangs():
    runtime = ThreadRuntime()
    began = runtime.now()
    stopping = AfterAStep(runtime)
    report = replay(config(slow_backend=60.0), python_topics(), runtime, stop=stopping.stop)
    assert runtime.now() - began < 20
    assert report.interrupted
    assert report.probes_closed == report.probes_issued > 0
    assert report.violations == ()


@pytest.mark.parametrize("tiers", [(), ("memory", "memory")])
@pytest.mark.parametrize("later", [0.0, 0.3])
def test_a_stopped_replay_in_a_hurry_abandons_what_is_under_way(tiers, later, monkeypatch):
    """`hurry` comes with `stop`, or while what is under way is waited for."""
    monkeypatch.setattr("kvtier.replay._LAST_CALL", 40.0)
    runtime = ThreadRuntime()
    began = runtime.now()
    stopping = AfterAStep(runtime, later)
    report = replay(
        config(slow_backend=60.0, tiers=tiers),
        python_topics(),
        runtime,
        stop=stopping.stop,
        hurry=stopping.hurry,
    )
    assert runtime.now() - began < 20
    assert report.interrupted
    assert report.probes_closed == report.probes_issued > 0
    assert report.violations == ()


def test_the_report_is_there_before_the_temporary_folder_goes(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with replaying(config(tiers=()), python_topics(limit=5)) as report:
        assert report.requests == 5
        assert list(tmp_path.rglob("*.kv")) != []
    assert list(tmp_path.iterdir()) == []


def test_the_temporary_folder_goes_also_if_the_report_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(BrokenPipeError), replaying(config(tiers=()), python_topics(limit=5)):
        raise BrokenPipeError
    assert list(tmp_path.iterdir()) == []


def test_progress_reaches_the_number_of_requests():
    done: list[int] = []
    replay(config(concurrency=3), python_topics(limit=30), VirtualRuntime(), progress=done.append)
    assert done == sorted(set(done))
    assert done[-1] == 30


# -- laws ----------------------------------------------------------------------------------


def test_every_law_is_checked():
    right = run(python_topics(limit=30), host_blocks=20)
    jobs = {"submitted": 5, "ok": 1, "partial": 1, "failed": 1, "raised": 1, "open": 1, "x": 9}
    assert broken_laws(dataclasses.replace(right, promotions=jobs, stores=jobs)) == []
    broken: list[tuple[dict[str, object], str]] = [
        ({"blocks": right.blocks + 1}, "blocks, but"),
        ({"hits": {**right.hits, "1:memory": 10**6}}, "blocks, but"),
        ({"misses": {**right.misses, "bound": 1}}, "blocks, but"),
        ({"probes_issued": right.probes_issued + 1}, "probes issued, but"),
        ({"probes_closed": 1}, "probes issued, but"),
        ({"probes_abandoned": 1}, "probes issued, but"),
        ({"mismatches": 1, "first_mismatch": "slot 3"}, "not what was stored (first: slot 3)"),
    ]
    broken += [
        ({"leaks": {**right.leaks, name: 2}}, "left when all was over") for name in right.leaks
    ]
    for name in ("promotions", "stores"):
        for way in ("submitted", "ok", "partial", "failed", "raised", "open"):
            broken.append(({name: {**jobs, way: 7}}, f"{name[:-1]} jobs submitted, but"))
    for changes, law in broken:
        report = dataclasses.replace(right, **changes)  # type: ignore[arg-type]
        assert len(report.violations) == 1, changes
        assert law in report.violations[0]
