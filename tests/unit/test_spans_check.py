"""What the check makes of an export that was tampered with, and what it needs for it."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvtier.check.spans import checking
from kvtier.check.spans.checking import Checked, check_spans
from kvtier.check.spans.generation import Gap
from kvtier.check.spans.store import RowStore
from kvtier.errors import BadInput, KvtierError
from tests.support import row_disk
from tests.support.span_builder import Life, Told, at, call, export, export_line
from tests.support.span_stories import STORIES, hit

# -- exports that were tampered with ----------------------------------------------------------


def whole_export() -> list[Told]:
    """Some probes that have something to do with each other, all of them right."""
    lives = [
        Life(joined=[("r2", 1.5)]).sent(4).answered(7, "hit").released(9),
        failed_of("bb", 2, 2),
        Life("bb", 4, 13, again="asked_again", request="r9", joined=[("r1", 13)])
        .sent(15)
        .answered(17, "forced_hit", stored=True)
        .held(True, (19, "mark_miss", "forced_miss", "resolved"))
        .held(False, (21, "mark_hit", "forced_hit", "resolved"))
        .held(True, (23, "join", "expired", "pending")),
        Life("bb", 6, 23, again="expired")
        .sent(24)
        .stay("in_flight", (30, "close", "closed", "absent")),
        Life("cc", 3, 3, scope="'t'").stay("pending", (5, "release", "abandoned", "absent")),
        Life("cc", 5, 14, scope="'t'")
        .sent(16)
        .answered(18, "miss", waiters=0)
        .held(False, (20, "sweep", "unclaimed", "absent")),
    ]
    return [span for life in lives for span in life.spans]


def failed_of(key: str, generation: int, born: int) -> Life:
    life = Life(key, generation, born).sent(6).answered(8, "lookup_error")
    return life.held(False, (13, "join", "asked_again", "pending"))


EXPORT = whole_export()
TAKEN = sorted({span.attributes.get("probe.seq", 0) for span in EXPORT})
PROBES = 6

LIFECYCLE = (
    "manager.id",
    "key",
    "scope",
    "probe.generation",
    "probe.seq",
    "probe.opened.seq",
    "probe.ended.seq",
    "probe.phase.from",
    "probe.phase.to",
    "probe.trigger",
    "probe.birth",
    "probe.outcome",
    "probe.verdict",
)
WORDS = (
    *("absent", "pending", "in_flight", "resolved"),
    *("join", "send", "answer", "mark_miss", "mark_hit", "release", "sweep", "close"),
    *("sent", "hit", "miss", "lookup_error", "forced_hit", "forced_miss", "asked_again"),
    *("expired", "abandoned", "unclaimed", "closed", "released", "joined", "noted"),
)


def check(spans: list[Told], folder: Path) -> Checked:
    path = folder / "tampered.jsonl"
    path.write_text(export(spans))
    return check_spans([path])


tampered = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
some_span = st.integers(0, len(EXPORT) - 1)


def test_untouched_it_is_complete(tmp_path: Path) -> None:
    checked = check(EXPORT, tmp_path)
    assert (checked.complete, checked.probes) == (PROBES, PROBES)
    assert checked.is_complete
    assert not checked.violations


@settings(tampered, max_examples=40)
@given(order=st.permutations(range(len(EXPORT))), again=st.lists(some_span, max_size=5))
def test_order_and_repeats_are_no_difference(
    tmp_path: Path, order: list[int], again: list[int]
) -> None:
    checked = check([EXPORT[n] for n in (*order, *again)], tmp_path)
    assert checked.complete == checked.probes == PROBES
    assert checked.repeats == len(again)
    assert not checked.violations


@pytest.mark.parametrize("lost", range(len(EXPORT)))
def test_a_lost_span_is_missed(lost: int, tmp_path: Path) -> None:
    checked = check([span for n, span in enumerate(EXPORT) if n != lost], tmp_path)
    assert checked.complete < PROBES
    assert not checked.is_complete
    # What is missing is never wrong.
    assert not checked.violations


@tampered
@given(lost=st.sets(some_span, min_size=1, max_size=len(EXPORT) - 1))
def test_lost_spans_are_never_wrong(tmp_path: Path, lost: set[int]) -> None:
    checked = check([span for n, span in enumerate(EXPORT) if n not in lost], tmp_path)
    assert checked.complete < PROBES
    assert not checked.violations


@st.composite
def edits(draw: st.DrawFn) -> tuple[int, str, object]:
    """A span, one of its attributes, and something else for it."""
    number = draw(some_span)
    attributes = EXPORT[number].attributes
    name = draw(st.sampled_from([n for n in LIFECYCLE if n in attributes and n != "scope"]))
    value = attributes[name]
    others: st.SearchStrategy[object]
    if isinstance(value, bool):
        others = st.just(not value)
    elif name == "probe.generation":
        others = st.integers(1, 40)
    elif isinstance(value, int):
        others = st.sampled_from([*TAKEN, 0, -1])
    elif name in ("manager.id", "key"):
        others = st.sampled_from(["a1/1:fs", "a1/2:s3", "aa", "bb", "cc", "dd"])
    else:
        others = st.sampled_from(WORDS)
    return number, name, draw(others.filter(lambda other: other != value))


@settings(tampered, max_examples=250)
@given(edit=edits())
def test_an_edited_attribute_is_never_accepted(
    tmp_path: Path, edit: tuple[int, str, object]
) -> None:
    number, name, value = edit
    spans = deepcopy(EXPORT)
    spans[number].attributes[name] = value
    checked = check(spans, tmp_path)
    assert checked.complete < PROBES, checked
    assert checked.violations or not checked.is_complete


@tampered
@given(
    number=some_span,
    name=st.sampled_from([*LIFECYCLE, "probe.waiters", "probe.stored", "probe.open", "x"]),
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
)
def test_whatever_an_attribute_is_it_is_judged(
    tmp_path: Path, number: int, name: str, value: object
) -> None:
    spans = [deepcopy(one) if n == number else one for n, one in enumerate(EXPORT)]
    spans[number].attributes[name] = value
    checked = check(spans, tmp_path)
    assert PROBES - 1 <= checked.probes <= PROBES + 1
    assert checked.wrong == checked.violation_count


@pytest.mark.parametrize("name", LIFECYCLE)
def test_a_missing_attribute_is_never_accepted(name: str, tmp_path: Path) -> None:
    for number, span in enumerate(EXPORT):
        if span.attributes.get(name) is None:
            continue
        spans = [deepcopy(one) if n == number else one for n, one in enumerate(EXPORT)]
        del spans[number].attributes[name]
        checked = check(spans, tmp_path)
        assert checked.complete < PROBES
        if name != "scope":
            assert [one.line for one in checked.files[0].unusable] == [number + 1]


@pytest.mark.parametrize("number", [n for n, span in enumerate(EXPORT) if span.parent_id])
def test_a_stay_of_another_probe_is_never_accepted(number: int, tmp_path: Path) -> None:
    for parent in (None, "00000000000000cc", EXPORT[number - 1].span_id):
        spans = deepcopy(EXPORT)
        if spans[number].parent_id != parent:
            spans[number].parent_id = parent
            checked = check(spans, tmp_path)
            assert [violation.requirement for violation in checked.violations] == ["L106"]


@pytest.mark.parametrize("number", range(len(EXPORT)))
@pytest.mark.parametrize("end", ["start", "end"])
def test_a_stay_at_another_time_is_never_accepted(number: int, end: str, tmp_path: Path) -> None:
    span = deepcopy(EXPORT[number])
    setattr(span, end, getattr(span, end) + 1)
    checked = check([span if n == number else one for n, one in enumerate(EXPORT)], tmp_path)
    last = span.name == "probe.resolved" and span.attributes["probe.phase.to"] == "absent"
    # Nothing follows the end of the entry.
    assert bool(checked.violations) is not (last and end == "end")


@pytest.mark.parametrize("number", range(len(EXPORT)))
def test_a_second_span_for_one_stay_is_wrong(number: int, tmp_path: Path) -> None:
    twin = deepcopy(EXPORT[number])
    twin.span_id = "00000000000000cc"
    checked = check([*EXPORT, twin], tmp_path)
    assert [violation.requirement for violation in checked.violations] == ["L106"]
    assert checked.wrong == 1
    twin = deepcopy(EXPORT[number])
    twin.attributes["probe.waiters"] += 1
    checked = check([*EXPORT, twin], tmp_path)
    assert [violation.requirement for violation in checked.violations] == ["L106"]


def test_two_keys_cannot_share_a_span(tmp_path: Path) -> None:
    """Spans of one id are compared wherever they belong."""
    moved = deepcopy(EXPORT[1])
    moved.attributes["key"] = "dd"
    checked = check([*EXPORT, moved], tmp_path)
    assert {violation.says for violation in checked.violations} == {
        "another span has the same id and says something else"
    }
    assert (checked.wrong, checked.complete) == (2, PROBES - 1)


# -- what is missing --------------------------------------------------------------------------


def story(name: str) -> str:
    return next(one.text for one in STORIES if one.name == name)


@pytest.mark.parametrize(
    ("name", "gap"),
    [
        ("truncated_pending", Gap.TRUNCATED),
        ("truncated_in_flight", Gap.TRUNCATED),
        ("truncated_resolved", Gap.TRUNCATED),
        ("open_pending", Gap.OPEN),
        ("open_in_flight", Gap.OPEN),
        ("open_resolved", Gap.OPEN),
        ("no_seq", Gap.UNUSABLE),
        ("mistyped", Gap.UNUSABLE),
        ("clock_backwards", Gap.CLOCK),
        ("no_probe", Gap.NO_PROBE),
        ("no_probe_pending", Gap.NO_PENDING),
        ("no_generation", Gap.NO_IN_FLIGHT),
        ("no_probe_in_flight", Gap.NO_IN_FLIGHT),
        ("no_probe_resolved", Gap.NO_RESOLVED),
        ("no_resolved_between", Gap.NO_RESOLVED),
        ("asked_again_of_what", Gap.NO_PREDECESSOR),
        ("asked_again_and_lost", Gap.NO_SUCCESSOR),
    ],
)
def test_why_a_history_is_incomplete(name: str, gap: Gap, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(story(name))
    assert check_spans([path]).incomplete == {gap: 1}


def test_every_gap_has_its_words() -> None:
    assert len({gap.says for gap in Gap}) == len(Gap)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kvtier.manager.id": None}, "probe.pending: has no kvtier.manager.id"),
        ({"kvtier.key": 5}, "probe.pending: kvtier.key is not a string"),
        ({"kvtier.scope": 5}, "probe.pending: kvtier.scope is not a string"),
        ({"kvtier.probe.generation": 0}, "probe.pending: kvtier.probe.generation is 0, and"),
        ({"kvtier.probe.seq": True}, "probe.pending: kvtier.probe.seq is not a whole number"),
        ({"kvtier.probe.waiters": 1.0}, "probe.pending: kvtier.probe.waiters is not a whole"),
        ({"kvtier.probe.stored": "yes"}, "probe.pending: kvtier.probe.stored is not true or false"),
        ({"kvtier.probe.open": 0}, "probe.pending: kvtier.probe.open is not true or false"),
    ],
)
def test_an_attribute_that_is_wrong_is_named_by_line(
    change: dict[str, object], why: str, tmp_path: Path
) -> None:
    spans = deepcopy(hit().spans)
    spans[1].attributes |= {name.removeprefix("kvtier."): value for name, value in change.items()}
    checked = check(spans, tmp_path)
    ((line, told),) = checked.files[0].unusable
    assert line == 2
    assert told.startswith(why)
    assert checked.incomplete.total() == 1


def test_a_call_without_its_numbers_is_not_judged(tmp_path: Path) -> None:
    odd = call(3, 3)
    odd.attributes["lookup_batch.answers"] = "three"
    checked = check([*hit().spans, odd], tmp_path)
    assert (checked.batches, checked.complete, checked.is_complete) == (1, 1, False)
    assert checked.files[0].unusable[0].line == 5


def test_a_call_told_twice_is_one_call(tmp_path: Path) -> None:
    checked = check([*hit().spans, call(3, 2), call(3, 2)], tmp_path)
    assert (checked.batches, checked.violation_count, checked.repeats) == (1, 1, 1)
    checked = check([*hit().spans, call(3, 3), call(2, 2)], tmp_path)
    assert {violation.requirement for violation in checked.violations} == {"L106"}


# -- files, memory, order ---------------------------------------------------------------------


def test_violations_come_by_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(key: str, number: int) -> Life:
        life = hit(key, number, number * 10)
        life.stays[2].attributes["probe.outcome"] = "evicted"
        return life

    paths = []
    for name in "ab":
        keys = [f"{name}{n}" for n in range(10)]
        lives = [wrong(key, 10 * (name == "b") + n) for n, key in enumerate(keys, 1)]
        paths.append(tmp_path / name)
        paths[-1].write_text(export(span for life in lives for span in life.spans))
    found = check_spans(paths).violations
    expected = [(str(path), line) for path in paths for line in range(4, 41, 4)]
    assert [(one.file, one.line) for one in found] == expected
    assert {step.file for step in found[-1].history} == {1}
    monkeypatch.setattr(checking, "KEPT", 3)
    checked = check_spans(paths)
    assert [(one.file, one.line) for one in checked.violations] == expected[:3]
    assert checked.violation_count == checked.wrong == 20


def test_other_libraries_only(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    foreign = {"traceId": "1", "spanId": "2", "startTimeUnixNano": 1, "endTimeUnixNano": 2}
    for path in paths:
        path.write_text(export_line(foreign))
    with pytest.raises(BadInput, match="has no kvtier spans"):
        check_spans(paths)
    paths[1].write_text(export(hit().spans))
    assert check_spans(paths).complete == 1


def test_what_is_beyond_the_cache_lies_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lives = [hit(f"{n:04x}", n, n * 10) for n in range(1, 1501)]
    path = tmp_path / "a"
    path.write_text(
        export(span for n in range(4) for life in lives for span in life.spans[n : n + 1])
    )
    before = nameless()
    held: list[int] = []
    sort_out = RowStore.sort_out

    def watched(store: RowStore) -> None:
        held.append(nameless() - before)
        sort_out(store)

    monkeypatch.setattr(RowStore, "sort_out", watched)
    checked = check_spans([path], cache=2**16)
    assert (checked.complete, checked.probes) == (1500, 1500)
    assert held[0] > 2**19
    assert nameless() == before


@pytest.mark.slow
def test_a_core_judges_thousands_of_probes_a_second_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with path.open("w") as file:
        for n in range(1, 20_001):
            life = hit(f"{n % 5000:064x}", n, n * 10)
            file.write(export_line(*(span.otlp() for span in life.spans)) + "\n")
    program = (
        "import sys, time; from pathlib import Path;"
        "from kvtier.check.spans.checking import check_spans\n"
        "began = time.process_time(); checked = check_spans([Path(sys.argv[1])])\n"
        "print(checked.complete / (time.process_time() - began))\n"
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=True
    )
    rate, kilobytes = map(float, ran.stdout.split())
    assert path.stat().st_size > 80e6
    assert rate > 5000
    assert kilobytes < 100_000


def nameless() -> int:
    """Bytes of files that are open and have been removed: nobody need remove them."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was the one that lists them
            status = fd.stat()
            found += status.st_size if not status.st_nlink else 0
    return found


def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row_disk.fill(monkeypatch)
    path = tmp_path / "a"
    path.write_text(export(span for n in range(1, 600) for span in hit("aa", n, n * 10).spans))
    with pytest.raises(KvtierError, match="temporary file: database or disk is full"):
        check_spans([path])


def test_who_watches_is_told_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_OFTEN", 5000)
    path = tmp_path / "a"
    path.write_text(export(span for n in range(1, 9) for span in hit("aa", n, n * 10).spans))
    seen: list[int | None] = []
    check_spans([path], watch=lambda file: seen.append(None if file is None else file.position))
    *positions, last = seen
    assert last is None
    told = [position for position in positions if position is not None]
    assert told == sorted(told)
    assert len(told) == path.stat().st_size // 6000 or len(told) > 3


def test_the_shortest_history_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text(story("vanished"))
    (violation,) = check_spans([path]).violations
    assert [(step.seq, step.generation, step.outcome) for step in violation.history] == [
        (10, 2, "asked"),
        (20, 1, "released"),
    ]


def test_times_of_the_console_are_precise_enough(tmp_path: Path) -> None:
    """It prints microseconds: stays that touch still touch."""
    spans: list[dict[str, object]] = []
    for told in hit().spans:
        attributes = {f"kvtier.{name}": value for name, value in told.attributes.items()}
        spans.append(
            {
                "name": told.name,
                "context": {"trace_id": f"0x{told.trace_id}", "span_id": f"0x{told.span_id}"},
                "parent_id": told.parent_id and f"0x{told.parent_id}",
                "start_time": iso(told.start + 999),
                "end_time": iso(told.end + 999),
                "attributes": {k: v for k, v in attributes.items() if v is not None},
                "links": [],
            }
        )
    path = tmp_path / "a"
    path.write_text("".join(json.dumps(span, indent=4) + "\n" for span in spans))
    checked = check_spans([path])
    assert (checked.complete, checked.is_complete) == (1, True), checked


def iso(time: int) -> str:
    second = (time - at(0)) // 1000
    return f"2026-09-21T14:13:20.{second:06d}Z"
