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
from typing import Any

import yaml

from kvtier.lifecycle import TABLE, LookupPhase, Outcome, Trigger
from kvtier.resources import resource_folder
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


def registry(name: str) -> list[dict[str, Any]]:
    """The groups in one file of `spec/telemetry/`."""
    text = (resource_folder("spec") / "telemetry" / f"{name}.yaml").read_text()
    groups: list[dict[str, Any]] = yaml.safe_load(text)["groups"]
    return groups


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def telemetry_spans() -> str:
    """Every span and what it hangs on."""
    lines = [row("span", "kind", "parent", "links", "covers"), row(*["---"] * 5)]
    for group in registry("spans"):
        about = group["annotations"]["kvtier"]
        name = about["name"].replace("kvtier.", "")
        kind = group["span_kind"].upper()
        if "local_kind" in about:
            kind += f" ({about['local_kind'].upper()} for a tier of this machine)"
        told = " ".join((group["brief"], *group.get("note", "").split()))
        lines.append(row(f"`{name}`", kind, about.get("parent", ""), about.get("links", ""), told))
    return "\n".join(lines)


PROBE_SPANS = ["probe", "probe.pending", "probe.in_flight", "probe.resolved"]


def telemetry_attributes() -> str:
    """Every attribute with its type and what it is on."""
    users: dict[str, list[str]] = defaultdict(list)
    for group in registry("spans"):
        for one in group["attributes"]:
            users[one["ref"]].append(group["annotations"]["kvtier"]["name"].partition(" ")[0])
    linked = " ".join(group.get("note", "") for group in registry("spans"))
    measured = {one["ref"] for group in registry("metrics") for one in group["attributes"]}

    def found_on(name: str) -> str:
        spans = users[name]
        on = [f"`{span}`" for span in spans]
        if spans[:4] == PROBE_SPANS:
            on[:4] = ["`probe`", "its stays"]
        elif spans[:3] == PROBE_SPANS[1:]:
            on[:3] = ["stays"]
        on += ["links"] * (f"`{name}`" in linked) + ["metrics"] * (name in measured)
        return ", ".join(on)

    lines = []
    for group in registry("attributes"):
        lines += [f"**{group['display_name']}**", ""]
        lines += [row("attribute", "type", "on", ""), row(*["---"] * 4)]
        for one in group["attributes"]:
            kind = one["type"]
            if isinstance(kind, dict):
                kind = ", ".join(f"`{member['value']}`" for member in kind["members"])
            told = " ".join((one["brief"], *one.get("note", "").split()))
            lines.append(row(f"`{one['id']}`", kind, found_on(one["id"]), told))
        lines.append("")
    return "\n".join(lines[:-1])


def telemetry_metrics() -> str:
    """Every metric with its attributes."""
    lines = [row("metric", "instrument", "unit", "attributes", ""), row(*["---"] * 5)]
    for group in registry("metrics"):
        told = " ".join((f"{group['brief']}.", *group.get("note", "").split()))
        lines.append(
            row(
                f"`{group['metric_name']}`",
                group["instrument"],
                group["unit"],
                ", ".join(f"`{one['ref']}`" for one in group["attributes"]),
                told,
            )
        )
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "lifecycle-diagram": lifecycle_diagram,
    "lifecycle-table": lifecycle_table,
    "triggers": lambda: members(Trigger, "trigger"),
    "outcomes": lambda: members(Outcome, "outcome"),
    "miss-reasons": lambda: members(MissReason, "reason"),
    "defer-reasons": lambda: members(DeferReason, "reason"),
    "memory-store": lambda: source(MemoryStore),
    "telemetry-spans": telemetry_spans,
    "telemetry-attributes": telemetry_attributes,
    "telemetry-metrics": telemetry_metrics,
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
