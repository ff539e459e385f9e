"""Spans as lanes, and lanes as a page; `tests/integration/test_timeline.py` opens it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import resource
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from kvtier.check.counterexample import Event
from kvtier.check.exploration import explored
from kvtier.check.spans.reading import Span
from kvtier.check.timeline import (
    Timeline,
    arranged,
    counterexample_spans,
    render_timeline,
    write_page,
)
from kvtier.errors import KvtierError
from kvtier.model.state import Config
from tests.support.drawn_spans import (
    BEGIN,
    MANAGER,
    TIER,
    at,
    call,
    job,
    joined,
    key,
    look,
    many,
    probe,
    served,
    span,
)

TIMES = (0, 100, 900, 2000)
OPEN, TRUNCATED = {"kvtier.probe.open": True}, {"kvtier.probe.truncated": True}


def kinds(timeline: Timeline) -> list[list[str]]:
    """Of each lane, its bars."""
    return [[bar.kind for row in lane.rows for bar in row] for lane in timeline.lanes]


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


# Lanes


def test_a_probe_is_a_lane_of_its_three_stays() -> None:
    timeline = arranged(probe(1, TIMES))
    [lane] = timeline.lanes
    assert (lane.name, lane.group, lane.is_key) == (key(1), f"tier {TIER}, manager {MANAGER}", True)
    assert kinds(timeline) == [["pending", "in_flight", "hit"]]
    assert [(bar.start, bar.end) for bar in lane.rows[0]] == [
        (at(0), at(100)),
        (at(100), at(900)),
        (at(900), at(2000)),
    ]
    assert (timeline.probes, timeline.spans) == (1, 4)


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_spans_says_nothing(seed: int) -> None:
    spans = [*probe(1, TIMES), *probe(2, (10, 100, 900, 1500)), call(1, 150, 850, keys=2)]
    shuffled = Random(seed).sample(spans, len(spans))
    assert render_timeline(shuffled, "x") == render_timeline(spans, "x")


@pytest.mark.parametrize("seed", range(5))
def test_stays_that_took_no_time_come_in_the_order_of_a_life(seed: int) -> None:
    spans = Random(seed).sample(probe(1, (0, 0, 0, 0)), 4)
    assert kinds(arranged(spans)) == [["pending", "in_flight", "hit"]]


def test_generations_of_a_key_share_its_lane_and_no_two_bars_overlap() -> None:
    spans = [*probe(1, TIMES), *probe(1, (2000, 2100, 2300, 2400), generation=2, seq=4)]
    assert kinds(arranged(spans)) == [["pending", "in_flight", "hit"] * 2]


def test_keys_of_other_managers_tiers_and_scopes_have_lanes_of_their_own() -> None:
    spans = [
        *probe(1, TIMES),
        *probe(1, TIMES, manager="m2/1:fs", generation=2),
        *probe(1, TIMES, tier="2:s3", generation=3),
        *probe(1, TIMES, extra={"kvtier.scope": "'tenant'"}, generation=4),
    ]
    lanes = arranged(spans).lanes
    assert [(lane.group.split()[-1], lane.name) for lane in lanes] == [
        ("m1/1:fs", key(1)),
        ("m1/1:fs", f"{key(1)} in 'tenant'"),
        ("m2/1:fs", key(1)),
        ("m1/1:fs", key(1)),
    ]
    assert [lane.group.split(",")[0] for lane in lanes[2:]] == ["tier 1:fs", "tier 2:s3"]


def test_keys_come_in_the_order_of_their_birth() -> None:
    spans = [*probe(1, (50, 100, 900, 1000)), *probe(2, TIMES), *probe(3, (20, 100, 900, 1000))]
    assert [lane.name for lane in arranged(spans).lanes] == [key(2), key(3), key(1)]


def test_what_overlaps_in_a_lane_gets_further_rows() -> None:
    spans = [job(1, 0, 100, ()), job(2, 50, 150, ()), job(3, 60, 70, ()), job(4, 100, 120, ())]
    [lane] = arranged(spans).lanes
    rows = [[bar.span.attributes["kvtier.job.id"] for bar in row] for row in lane.rows]
    assert rows == [[1, 4], [2], [3]]


def test_what_is_done_comes_before_the_keys() -> None:
    spans = [
        *probe(1, TIMES),
        call(1, 150, 850),
        job(1, 900, 950, (1,)),
        job(2, 960, 990, (1,), what="cascade"),
        look(1, 0, 5, "r1", behind="probe"),
        look(2, 800, 900, "r1"),
    ]
    timeline = arranged(spans)
    assert [lane.name for lane in timeline.lanes] == [
        "1:fs calls",
        "scheduler passes",
        "1:fs promotions",
        "1:fs cascades",
        key(1),
    ]
    assert [lane.is_key for lane in timeline.lanes] == [False] * 4 + [True]
    assert kinds(timeline)[1] == ["pass_failed", "pass"]


# Verdicts


@pytest.mark.parametrize(
    ("outcome", "verdict", "kind"),
    [
        ("hit", True, "hit"),
        ("miss", False, "miss"),
        ("lookup_error", False, "error"),
        ("forced_hit", True, "forced_hit"),
    ],
)
def test_a_verdict_is_named_after_what_brought_it(outcome: str, verdict: bool, kind: str) -> None:
    assert kinds(arranged(probe(1, TIMES, outcome=outcome, verdict=verdict)))[0][2] == kind


def test_a_mark_names_the_verdict_after_it() -> None:
    spans = probe(1, TIMES)
    held = spans.pop()
    said = held.attributes
    marked = said | {"kvtier.probe.outcome": "forced_miss"}
    after = said | {
        "kvtier.probe.opened.seq": 4,
        "kvtier.probe.seq": 5,
        "kvtier.probe.verdict": False,
    }
    spans += [
        replace(held, end=at(1500), attributes=marked),
        replace(held, start=at(1500), span_id="d2", attributes=after),
    ]
    assert kinds(arranged(spans)) == [["pending", "in_flight", "hit", "forced_miss"]]


def test_without_its_probe_a_verdict_is_what_was_held() -> None:
    spans = [one for one in probe(1, TIMES, outcome="lookup_error", verdict=False)[1:]]
    assert kinds(arranged(spans)) == [["pending", "in_flight", "miss"]]
    del spans[2].attributes["kvtier.probe.verdict"]
    assert kinds(arranged(spans)) == [["pending", "in_flight", "resolved"]]


def test_a_probe_whose_stays_are_all_missing_is_drawn_itself() -> None:
    timeline = arranged(probe(1, TIMES, waiters=(joined("r2", 300),))[:1])
    assert kinds(timeline) == [["probe"]]
    assert [tick.request for tick in timeline.lanes[0].rows[0][0].ticks] == ["r2"]


# Links


def test_a_waiter_is_a_tick_of_the_stay_that_it_found() -> None:
    spans = probe(
        1,
        TIMES,
        waiters=(joined("r2", 50), joined("r3", 100), joined("r4", 899)),
        later=(joined("r5", 1500),),
    )
    [lane] = arranged(spans).lanes
    ticks = [[(tick.request, tick.time) for tick in bar.ticks] for bar in lane.rows[0]]
    assert ticks == [
        [("r2", at(50))],
        [("r3", at(100)), ("r4", at(899))],
        [("r5", at(1500))],
    ]


def test_a_waiter_without_a_time_is_a_tick_without_a_place() -> None:
    [link] = served("r9")
    [lane] = arranged(probe(1, TIMES, waiters=(link,))).lanes
    [tick] = [tick for bar in lane.rows[0] for tick in bar.ticks]
    assert (tick.time, tick.request) == (None, "")


def arrows(spans: Iterable[Span]) -> set[tuple[str, str, str]]:
    """Kind and span id of what each arrow leads from, and the kind and key where it leads."""
    bars = [bar for lane in arranged(spans).lanes for row in lane.rows for bar in row]
    return {
        (bar.span.span_id.lstrip("ef0"), to.kind, str(to.span.attributes["kvtier.key"]))
        for bar in bars
        for to in bar.arrows
    }


def test_an_arrow_leads_from_a_call_to_what_it_asked() -> None:
    spans = [
        *probe(1, (0, 100, 900, 1000)),
        *probe(2, (0, 100, 900, 1000)),
        *probe(3, (500, 950, 1500, 1600)),
        call(1, 105, 890, queued=3, keys=2, requests=("r1",)),
        call(2, 960, 1400, queued=9, requests=("r1",)),
    ]
    assert arrows(spans) == {
        ("1", "in_flight", key(1)),
        ("1", "in_flight", key(2)),
        ("2", "in_flight", key(3)),
    }


def test_of_two_calls_of_one_flush_it_is_the_one_that_served_the_request() -> None:
    spans = [
        *probe(1, (0, 100, 900, 1000), request="r1"),
        *probe(2, (0, 100, 900, 1000), request="r2"),
        call(1, 101, 400, requests=("r1",)),
        call(2, 401, 890, queued=299, requests=("r2",)),
    ]
    assert arrows(spans) == {("1", "in_flight", key(1)), ("2", "in_flight", key(2))}


def test_a_call_that_queued_asks_what_was_sent_when_it_was_handed_over() -> None:
    spans = [
        *probe(1, (0, 250, 1100, 1200)),
        *probe(2, (0, 300, 1100, 1200)),
        call(1, 601, 800, queued=350, requests=("r1",)),
        call(2, 900, 1000, queued=599, requests=("r1",)),
    ]
    assert arrows(spans) == {("1", "in_flight", key(1)), ("2", "in_flight", key(2))}


def test_no_arrow_leads_to_another_manager_or_from_a_call_of_another_time() -> None:
    spans = [
        *probe(1, (0, 100, 900, 1000)),
        call(1, 105, 890, manager="m2/1:fs"),
        call(2, 50, 90),
        call(3, 1105, 1190),
    ]
    assert arrows(spans) == set()


def test_an_arrow_leads_from_a_job_to_the_verdict_that_it_acted_on() -> None:
    assert arrows([*probe(1, TIMES), job(5, 1000, 1100, (1, 2))]) == {("5", "hit", key(1))}


# What is not whole


def test_the_same_span_again_is_counted_and_not_drawn() -> None:
    spans = [*probe(1, TIMES), *probe(1, TIMES)]
    timeline = arranged(spans)
    assert (timeline.spans, timeline.repeats) == (4, 4)
    assert kinds(timeline) == [["pending", "in_flight", "hit"]]


def test_two_spans_with_one_id_are_both_drawn() -> None:
    spans = probe(1, TIMES)
    timeline = arranged([*spans, replace(spans[3], end=at(2500))])
    assert kinds(timeline) == [["pending", "in_flight", "hit", "hit"]]
    assert len(timeline.lanes[0].rows) == 2


def test_spans_of_others_are_counted_and_not_drawn() -> None:
    other = span("GET /probe", 0, 5, {"http.method": "GET"}, span_id="1")
    like = span("probe something", 0, 5, {"a": 1}, span_id="2")
    timeline = arranged([other, like, *probe(1, TIMES)])
    assert (timeline.spans, timeline.others) == (4, 2)


def test_a_clock_that_runs_backwards_gives_a_bar_without_width() -> None:
    spans = probe(1, TIMES)
    spans[2] = replace(spans[2], end=at(40))
    [lane] = arranged(spans).lanes
    assert [(bar.start, bar.end) for bar in lane.rows[0]][1] == (at(100), at(100))
    told = data_of(render_timeline(spans, "x"))["lanes"][0][-1]
    assert told[1][:3] == ["in_flight", 100_000, -60_000]


def test_nothing_told_is_drawn_all_the_same() -> None:
    timeline = arranged(
        [
            span("probe.pending", 0, 5, {"kvtier.x": 1}, span_id="1"),
            span("lookup_batch x", 0, 5, {"kvtier.x": 1}, span_id="2"),
            span("promotion x", 0, 5, {"kvtier.x": 1}, span_id="3"),
            span("scheduler.lookup", 0, 5, {"kvtier.x": 1}, span_id="4"),
            span("probe x", 0, 5, {"kvtier.x": 1}, span_id="5"),
        ]
    )
    assert timeline.spans == 5
    assert timeline.lanes[-1].name == "key not told"


# The page


def test_times_are_told_from_the_first_span_on() -> None:
    told = data_of(render_timeline(probe(1, TIMES), "x"))
    assert (told["began"], told["length"]) == ("2023-11-14 22:13:20.000000000 UTC", 2_000_000)
    assert [bar[1:3] for bar in told["lanes"][0][-1]] == [
        [0, 100_000],
        [100_000, 800_000],
        [900_000, 1_100_000],
    ]


def test_open_and_truncated_are_flags_of_a_bar() -> None:
    spans = probe(1, TIMES)
    spans[1].attributes.update(TRUNCATED)
    spans[3].attributes.update(OPEN)
    told = data_of(render_timeline(spans, "x"))["lanes"][0][-1]
    assert [bar[3] for bar in told] == [2, 0, 1]


def test_the_title_says_the_file_and_how_much() -> None:
    page = render_timeline([*probe(1, TIMES), call(1, 150, 850)], "spans.jsonl")
    assert "<title>spans.jsonl: 1 probe, 1 key, 5 spans</title>" in page
    assert "<title>x: 0 probes, 0 keys, 0 spans</title>" in render_timeline([], "x")


EVIL = "</script><script>alert(1)</script><!--\u2028\u2029%DATA% %SCRIPT% & \udc80 \x00"


def test_what_spans_say_stays_data() -> None:
    spans = probe(1, TIMES, request=EVIL, waiters=(joined(EVIL, 50),), extra={"kvtier.x": EVIL})
    spans[0] = replace(spans[0], trace_id=EVIL)
    spans = [replace(one, trace_id=EVIL) for one in spans]
    page = render_timeline(spans, EVIL)
    assert page.count("<script") == 2
    assert page.count("</script") == 2
    assert "alert(1)</script>" not in page
    told = data_of(page)
    assert told["title"] == EVIL
    assert told["lanes"][0][-1][0][-2] == [[50_000, EVIL]]
    page.encode()
    data = page.split('id="data">')[1].split("</script>")[0]
    assert data.isascii()
    assert not set("<>&\0") & set(data)


def test_numbers_that_javascript_would_change_are_text() -> None:
    odd = {"kvtier.a": 2**53 + 1, "kvtier.b": float("nan"), "kvtier.c": -(2**63), "kvtier.d": True}
    told = data_of(render_timeline(probe(1, TIMES, extra=odd), "x"))
    shared, [first, *_] = told["lanes"][0][4:]
    shown = {
        name: value
        for shape, values in (shared, first[7:9])
        for name, value in zip(told["shapes"][shape], values, strict=True)
    }
    assert [shown[f"kvtier.{name}"] for name in "abcd"] == [
        "9007199254740993",
        "nan",
        "-9223372036854775808",
        True,
    ]


def test_only_this_program_and_these_looks_are_allowed() -> None:
    page = render_timeline(probe(1, TIMES), "x")
    found = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert found
    policy = html.unescape(found[1])

    def allowed(element: str) -> str:
        [content] = re.findall(f"<{element}>(.*?)</{element}>", page, re.S)
        return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"

    assert policy == (
        f"default-src 'none'; style-src {allowed('style')}; script-src {allowed('script')}"
    )
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|\burl\((?!#)", page)


def test_the_program_never_makes_elements_of_text() -> None:
    page = render_timeline([], "x")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", page)


def test_ten_thousand_probes_are_a_few_megabytes() -> None:
    page = render_timeline(many(10_000), "x")
    assert len(page) < 8_000_000
    assert len(data_of(page)["lanes"]) == 10_001


# Counterexamples


def entry(phase: str = "ABSENT", **rest: Any) -> dict[str, Any]:
    usual = {"gen": 0, "verdict": "none", "error": False, "waiters": frozenset()}
    return usual | {"phase": phase} | rest


def steps(*told: tuple[str, dict[str, Any], tuple[str, ...]]) -> list[Event]:
    """Events of one key `k1`: label, its entry, what else changed."""
    return [
        Event(n, label, changes, {"entry": {"k1": state}})
        for n, (label, state, changes) in enumerate(told)
    ]


R1, BOTH = frozenset({"r1"}), frozenset({"r1", "r2"})
WAY = steps(
    ("Initial", entry(), ()),
    ("Lookup_r1_k1_None", entry("PENDING", gen=1, waiters=R1), ("batch: +k1",)),
    ("Flush", entry("IN_FLIGHT", gen=1, waiters=R1), ("batch: -k1", "entry[k1]: phase")),
    ("WorkerCall", entry("IN_FLIGHT", gen=1, waiters=R1), ()),
    ("Lookup_r2_k1_None", entry("IN_FLIGHT", gen=1, waiters=BOTH), ()),
    ("Drain", entry("RESOLVED", gen=1, verdict="T", waiters=BOTH), ()),
    ("MarkMiss_k1", entry("RESOLVED", gen=1, verdict="F", waiters=BOTH), ()),
    ("Cleanup_r1", entry("RESOLVED", gen=1, verdict="F", waiters=frozenset({"r2"})), ()),
    ("Cleanup_r2", entry(), ()),
    ("Lookup_r1_k1_None", entry("PENDING", gen=2, waiters=R1), ()),
    ("Flush", entry("IN_FLIGHT", gen=2, waiters=R1), ()),
    ("Drain", entry("RESOLVED", gen=2, verdict="F", error=True, waiters=R1), ()),
)


def test_a_counterexample_is_drawn_step_by_step() -> None:
    timeline = arranged(counterexample_spans(WAY))
    done, lane, batch = timeline.lanes
    assert [bar.span.attributes["label"] for bar in done.rows[0]][:3] == [
        "Initial",
        "Lookup(r1, k1) = None",
        "Flush",
    ]
    assert [(bar.start, bar.end) for bar in done.rows[0]] == [(n, n + 1) for n in range(12)]
    assert (lane.group, lane.name) == ("keys", "k1")
    assert [(bar.kind, bar.start, bar.end) for bar in lane.rows[0]] == [
        ("pending", 1, 2),
        ("in_flight", 2, 5),
        ("hit", 5, 6),
        ("forced_miss", 6, 8),
        ("pending", 9, 10),
        ("in_flight", 10, 11),
        ("error", 11, 12),
    ]
    ticks = [(tick.request, tick.time) for bar in lane.rows[0] for tick in bar.ticks]
    assert ticks == [("r2", 4)]
    assert lane.rows[0][-1].span.attributes["kvtier.probe.open"]
    assert batch.name == "batch"
    assert [(bar.span.attributes["label"], bar.end) for bar in batch.rows[0]] == [
        ("+k1", 2),
        ("-k1", 12),
    ]


def test_the_page_of_a_counterexample_counts_steps() -> None:
    page = render_timeline(counterexample_spans(WAY), "some bug", steps=True)
    assert "<title>some bug: 11 steps</title>" in page
    assert data_of(page)["steps"]


def test_a_counterexample_without_keys_or_steps_is_a_page_too() -> None:
    [lane] = arranged(counterexample_spans([Event(0, "Initial", (), {"slot": ()})])).lanes
    assert lane.name == "what is done"
    assert counterexample_spans([]) == []


def test_what_the_model_finds_is_drawn_as_often_as_phases_change() -> None:
    way = explored(Config.of(2, 2, 2), "short_answer", None).way
    timeline = arranged(counterexample_spans(way))
    drawn = sum(len(row) for lane in timeline.lanes if lane.is_key for row in lane.rows)
    phases = [[event.state["entry"][key]["phase"] for event in way] for key in ("k1", "k2")]
    begun = sum(
        after not in (before, "ABSENT") for one in phases for before, after in pairwise(one)
    )
    assert drawn == begun > 1


# Contrast


def colours(scheme: str) -> dict[str, str]:
    style = render_timeline([], "x").split("<style>")[1].split("</style>")[0]
    light, dark = re.findall(r":root \{(.*?)\}", style, re.S)[:2]
    found = dict(re.findall(r"--([\w-]+): (#\w{6})", light))
    return found | (dict(re.findall(r"--([\w-]+): (#\w{6})", dark)) if scheme == "dark" else {})


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        red, green, blue = (
            c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dim, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dim + 0.05)


def test_contrast_is_computed_as_the_standard_says() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_edges_can_be_seen(scheme: str) -> None:
    colour = colours(scheme)
    fills = [name.removesuffix("-ink") for name in colour if name.endswith("-ink")]
    assert len(fills) == 10
    for fill in fills:
        assert contrast(colour[fill], colour[f"{fill}-ink"]) >= 4.5, fill
        assert contrast(colour["page"], colour[f"{fill}-edge"]) >= 3, fill
    for ink in ("text", "quiet", "focus", "found"):
        for ground in ("page", "strip"):
            assert contrast(colour[ink], colour[ground]) >= 4.5, (ink, ground)


# Writing


@contextmanager
def smallest_files(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_page_of_before(tmp_path: Path) -> None:
    out = tmp_path / "out.html"
    write_page(out, "before")
    with smallest_files(10_000), pytest.raises(KvtierError) as raised:
        write_page(out, "x" * 1_000_000)
    assert str(raised.value) == f"{out}: cannot be written: File too large"
    assert [path.name for path in tmp_path.iterdir()] == ["out.html"]
    assert out.read_text() == "before"


def test_a_folder_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KvtierError, match="cannot be written: No such file or directory"):
        write_page(tmp_path / "no" / "out.html", "x")
    with pytest.raises(KvtierError, match="cannot be written: Is a directory"):
        write_page(tmp_path, "x")


def test_a_new_page_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    write_page(tmp_path / "out.html", "x")
    assert (tmp_path / "out.html").stat().st_mode == plain.stat().st_mode
    plain.chmod(0o640)
    write_page(plain, "x")
    assert plain.stat().st_mode & 0o777 == 0o640


def test_through_a_link_what_it_names_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_page(tmp_path / "link", "x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "x"


def test_what_is_not_a_file_is_written_to(tmp_path: Path) -> None:
    # A pipe of our own: code that is wrong here, run as root, would replace a device.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_page(pipe, "x")
        assert pipe.is_fifo()
        assert os.read(reader, 10) == b"x"
    finally:
        os.close(reader)


def test_an_open_descriptor_is_written_to() -> None:
    reader, writer = os.pipe()
    try:
        write_page(Path(f"/proc/self/fd/{writer}"), "x")
        assert os.read(reader, 10) == b"x"
    finally:
        os.close(reader)
        os.close(writer)


def test_the_beginning_is_told_whatever_the_clock_said() -> None:
    spans = [replace(one, start=one.start - BEGIN - 1, end=0) for one in probe(1, TIMES)]
    assert data_of(render_timeline(spans, "x"))["began"] == "1969-12-31 23:59:59.999999999 UTC"
    spans = [replace(one, start=2**62, end=2**62) for one in probe(1, TIMES)]
    assert data_of(render_timeline(spans, "x"))["length"] == 0
