"""The benchmarks measure what they say; what they find is not tested here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench.lookups import Shape
from tests.bench.measure import Clocks, Result, Spread, in_turn
from tests.peer.conftest import peer
from tests.peer.vllm_wheel import PeerUnavailable


def test_a_spread_is_the_median_and_the_middle_half():
    assert Spread.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(3.0, 2.0, 4.0, 1.0, 5.0, 5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0, 7.0, 7.0, 1)


def test_a_ratio_is_taken_within_a_round():
    result = Result.paired("x", "ns", [1.0, 20.0, 3.0], [2.0, 40.0, 4.0], "y", bound=0.5)
    assert result.ratio == Spread.of([0.5, 0.5, 0.75])
    assert result.holds


@pytest.mark.parametrize(("bound", "holds"), [(None, True), (2.0, True), (1.9, False)])
def test_a_bound_without_a_peer_is_on_the_time_itself(bound, holds):
    assert Result("x", "s", Spread.of([1.0, 2.0, 3.0]), bound=bound).holds is holds


def test_sides_take_turns_and_who_begins_changes():
    order = []

    def sample(name: str) -> Clocks:
        order.append(name)
        return Clocks(1.0, 1.0, 1.0)

    first, second = in_turn(lambda: sample("a"), lambda: sample("b"), 3)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert (len(first), len(second)) == (3, 3)


def test_a_shape_has_as_many_probes_as_different_keys():
    shape = Shape(3, 4, common=2)
    step = shape.step(serial=1)
    asked = [key for _, keys in step for key in keys]
    assert len(asked) == shape.lookups == 12
    assert len(set(asked)) == shape.probes == 8
    assert not set(asked) & {key for _, keys in shape.step(serial=2) for key in keys}


def test_without_the_peer_ours_is_measured_all_the_same(monkeypatch, capsys):
    def out_of_reach() -> None:
        raise PeerUnavailable("no wheel")

    monkeypatch.setattr(bench, "load", out_of_reach)
    assert bench.main(["--only", "lookups", "--rounds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == "kvtier.bench/1"
    assert report["skipped"] == ["the comparison with vLLM: no wheel"]
    names = [result["name"] for result in report["results"]]
    assert "whole probe, 64 x 16, cpu" in names
    assert all(result["ratio"] is None for result in report["results"])
    assert all(result["ours"]["median"] > 0 for result in report["results"])


@pytest.mark.peer
def test_with_the_peer_there_are_ratios(monkeypatch, capsys):
    monkeypatch.setattr(bench, "load", peer)
    bench.main(["--only", "lookups", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    [whole] = [line for line in lines if line.startswith("whole probe, 64 x 16, cpu")]
    assert "(vLLM 0.33.0)" in whole
    assert "0.9" in whole


def test_without_the_trace_the_replay_is_skipped_and_says_so(tmp_path, capsys):
    missing = tmp_path / "trace.jsonl"
    assert bench.main(["--only", "replay", "--trace", str(missing)]) == 0
    assert f"skipped: the replay: there is no trace.jsonl in {tmp_path}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_replay_is_measured_beside_its_files(tmp_path: Path, capsys):
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": n, "input_length": 1024, "output_length": 1, "hash_ids": [n, n + 1000]}
        for n in range(20)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert bench.main(["--only", "replay", "--trace", str(trace), "--json"]) == 0
    results = {r["name"]: r for r in json.loads(capsys.readouterr().out)["results"]}
    assert results["replay, 20 requests, time"]["writes"] == 40
    assert results["replay, 20 requests, time"]["holds"] is True
    assert results["replay, 20 requests, memory"]["ours"]["median"] > 10
