"""The span vectors of the spec: the files are the stories, and the check says what they say."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kvtier.check.spans.checking import Checked, check_spans
from tests.support.span_stories import FOLDER, STORIES, Story, index

ON_FILES = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.file)


def told(checked: Checked) -> tuple[int, int, int, set[str]]:
    broken = {violation.requirement for violation in checked.violations}
    return checked.complete, checked.incomplete.total(), checked.wrong, broken


def must_be_told(story: Story) -> tuple[int, int, int, set[str]]:
    broken = {story.requirement} if story.requirement else set()
    return story.complete, story.incomplete, story.wrong, broken


@ON_FILES
def test_a_file_is_its_story(story: Story) -> None:
    assert (FOLDER / story.file).read_text() == story.text


def test_the_index_names_every_file_and_no_other() -> None:
    assert (FOLDER / "index.json").read_text() == index()
    files = {path.relative_to(FOLDER).as_posix() for path in FOLDER.glob("*/*")}
    assert files == set(json.loads(index())["files"])


@ON_FILES
def test_the_check_says_what_the_index_says(story: Story) -> None:
    checked = check_spans([FOLDER / story.file])
    assert told(checked) == must_be_told(story), checked.violations
    assert checked.is_complete or story.kind != "accepted"
    assert not checked.is_complete or story.kind != "incomplete"


@ON_FILES
def test_the_order_of_lines_is_no_difference(story: Story, tmp_path: Path) -> None:
    if story.name == "cut_off":
        pytest.skip("its last line must be its last line")
    lines = story.text.splitlines(keepends=True)
    for seed in range(4):
        random.Random(seed).shuffle(lines)
        path = tmp_path / f"{seed}.jsonl"
        path.write_text("".join(lines))
        assert told(check_spans([path])) == must_be_told(story)


def test_every_violation_shows_the_step_that_is_wrong() -> None:
    for story in STORIES:
        for violation in check_spans([FOLDER / story.file]).violations:
            if not violation.name.startswith("lookup_batch"):
                assert violation.line in {step.line for step in violation.history}, story.file
                numbers = [step.seq or 0 for step in violation.history]
                assert numbers == sorted(numbers)


def test_files_side_by_side_are_one_export(tmp_path: Path) -> None:
    """A key of one file is the same key in another; spans of a probe may lie in several."""
    lines = (FOLDER / "accepted/hit.jsonl").read_text().splitlines(keepends=True)
    parts = tmp_path / "a", tmp_path / "b"
    for path, part in zip(parts, (lines[:2], lines[2:]), strict=True):
        path.write_text("".join(part))
    assert told(check_spans(parts)) == (1, 0, 0, set())
    assert told(check_spans(parts[:1])) == (0, 1, 0, set())
