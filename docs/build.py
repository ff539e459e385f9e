"""Writes the generated parts of the documentation: `make docs`.

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->` in a file of
`docs/`, and is never edited by hand. `--check` changes nothing and exits 1 if a
part is not what it would be now.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable
from enum import Enum
from inspect import getsource
from pathlib import Path

from kvtier.lifecycle import TABLE, LookupPhase, Outcome, Trigger
from kvtier.results import MissReason
from kvtier.tiering import DeferReason
from kvtier.tiers.memory import MemoryStore

HERE = Path(__file__).parent
QUIET = (Outcome.ILLEGAL, Outcome.UNTOUCHED, Outcome.DISCARDED)


def lifecycle_diagram() -> str:
    """Every row that changes something, as a Mermaid state diagram."""
    arrows: dict[tuple[LookupPhase, LookupPhase], list[str]] = defaultdict(list)
    for (phase, trigger), rows in TABLE.items():
        for row in rows:
            if row.outcome not in QUIET:
                arrows[phase, row.target].append(f"{trigger.name}: {row.outcome.value}")
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> ABSENT"]
    for (source, target), labels in arrows.items():
        lines.append(f"    {source.name} --> {target.name}: {'<br>'.join(labels)}")
    return "\n".join([*lines, "```"])


def lifecycle_table() -> str:
    """Every row of every cell, in the order in which they are tried."""
    lines = ["| phase | trigger | if | then | outcome |", "| --- | --- | --- | --- | --- |"]
    for (phase, trigger), rows in TABLE.items():
        for row in rows:
            guard = row.guard.value if row.guard else "always" if len(rows) == 1 else "else"
            target = "" if row.outcome is Outcome.ILLEGAL else f"`{row.target.name}`"
            lines.append(
                f"| `{phase.name}` | `{trigger.name}` | {guard} | {target} | {row.outcome.value} |"
            )
    return "\n".join(lines)


def members(kind: type[Enum], heading: str) -> str:
    """The members of an enumeration with the docstring under each."""
    found = re.findall(r'^    (\w+) = [^\n]*\n    """(.*?)"""', getsource(kind), re.M | re.S)
    shown = {name: " ".join(text.split()) for name, text in found}
    if list(shown) != [member.name for member in kind]:
        raise SystemExit(f"{kind.__name__}: a member without a docstring")
    names = {m.name: m.value if isinstance(m.value, str) else m.name for m in kind}
    rows = [f"| `{names[name]}` | {text} |" for name, text in shown.items()]
    return "\n".join([f"| {heading} | |", "| --- | --- |", *rows])


def source(thing: type) -> str:
    """A class as it stands in the code."""
    return f"```python\n{getsource(thing).rstrip()}\n```"


PARTS: dict[str, Callable[[], str]] = {
    "lifecycle-diagram": lifecycle_diagram,
    "lifecycle-table": lifecycle_table,
    "triggers": lambda: members(Trigger, "trigger"),
    "outcomes": lambda: members(Outcome, "outcome"),
    "miss-reasons": lambda: members(MissReason, "reason"),
    "defer-reasons": lambda: members(DeferReason, "reason"),
    "memory-store": lambda: source(MemoryStore),
}


def built(text: str) -> str:
    """`text` with every generated part made anew."""

    def part(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n{PARTS[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (\S+) -->.*?<!-- end \1 -->", part, text, flags=re.S)


def main(check: bool) -> int:
    """Rebuild, or with `check` compare; the exit code."""
    stale = []
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text()
        new = built(text)
        if new != text:
            stale.append(page.name)
            if not check:
                page.write_text(new)
    if stale:
        print("stale:" if check else "written:", *stale)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
