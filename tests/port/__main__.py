"""Writes the exported files of `spec/`: `make spec`.

`transitions.json` comes from the table that the code runs on; `vectors/calls/` from
the model, which knows nothing of the code. None of it is edited by hand. `--check`
changes nothing and exits 1 if a file is not what it would be now.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from kvtier.lifecycle import TABLE, Guard, LookupPhase, Outcome, Trigger
from tests.port.stories import STORIES, told
from tests.port.vectors import DEADLINE, LIFETIME, encoded, replayed
from tests.port.walks import covering

SPEC = Path(__file__).parents[2] / "spec"

WALKS = {"1x1": (1, 1, 2, False), "1x2": (1, 2, 2, True), "2x1": (2, 1, 1, True)}
"""Keys, requests, batches out, and whether in every situation."""


def transitions() -> dict[str, Any]:
    """The table, for programs."""
    return {
        "schema": "kvtier.transitions/1",
        "phases": _names(LookupPhase),
        "triggers": _names(Trigger),
        "outcomes": [outcome.value for outcome in Outcome],
        "guards": {guard.name: guard.value for guard in Guard},
        "cells": [
            {
                "phase": phase.name,
                "trigger": trigger.name,
                "rows": [
                    {
                        "guard": row.guard.name if row.guard else None,
                        "target": row.target.name,
                        "outcome": row.outcome.value,
                    }
                    for row in rows
                ],
            }
            for (phase, trigger), rows in TABLE.items()
        ],
    }


def _names(kind: type[Enum]) -> list[str]:
    return [member.name for member in kind]


def exported() -> Iterator[tuple[str, str]]:
    """Every exported file: its place in `spec/` and its text."""
    yield "transitions.json", json.dumps(transitions(), indent=1) + "\n"
    for size, (keys, requests, out, every_situation) in WALKS.items():
        new = {"max_batches_out": out, "deadline": DEADLINE, "verdict_lifetime": LIFETIME}
        lines = replayed(covering(new, keys, requests, every_situation))
        yield f"vectors/calls/walk_{size}.jsonl", encoded(lines)
    for name, story in STORIES.items():
        yield f"vectors/calls/story_{name}.jsonl", encoded(told(story))


def main(spec: Path, files: dict[str, str], check: bool) -> int:
    """Write the files, or with `check` compare them; the exit code."""
    stale = [
        name
        for name, text in files.items()
        if not (spec / name).is_file() or (spec / name).read_text() != text
    ]
    found = (path.relative_to(spec).as_posix() for path in spec.glob("vectors/calls/*"))
    stray = [name for name in found if name not in files]
    if not check:
        for name in stale:
            (spec / name).parent.mkdir(parents=True, exist_ok=True)
            (spec / name).write_text(files[name])
        for name in stray:
            (spec / name).unlink()
    if stale or stray:
        print("stale:" if check else "written:", *stale, *stray)
    return 1 if check and (stale or stray) else 0


if __name__ == "__main__":
    sys.exit(main(SPEC, dict(exported()), "--check" in sys.argv[1:]))
