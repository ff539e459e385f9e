"""Writes the tables of `tla/README.md` anew, from `manifest.json`: `python tla/table.py`.

`--check` changes nothing and exits 1 if the README is not what it would be now.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE / "README.md"

HEADINGS = {
    "holds": "must hold",
    "equivalent": "a change that makes no difference",
    "false": "what one might believe, and is not so",
    "reach": "must be reachable",
    "mutant": "known bugs",
    "bite": "made-up bugs",
}


def _row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def models(manifest: list[dict[str, Any]]) -> str:
    """Every model by kind, with what TLC found."""
    head = ("file", "shows", "breaks", "distinct states", "depth", "seconds")
    lines = []
    for kind, heading in HEADINGS.items():
        rows = [model for model in manifest if model["kind"] == kind]
        if rows:
            lines += ["", f"**{heading[0].upper()}{heading[1:]}**", "", _row(head)]
            lines.append(_row(["---"] * len(head)))
        for model in rows:
            slow = " (slow)" if model["class"] == "slow" else ""
            report = f" ({model['report']})" if "report" in model else ""
            broken = f"`{model['property']}`" if model["property"] else ""
            distinct = f"{model['distinct']:,}" if "distinct" in model else ""
            depth = model.get("depth", "")
            seconds = model.get("seconds", "")
            shows = model["shows"] + report
            lines.append(_row((f"`{model['cfg']}`{slow}", shows, broken, distinct, depth, seconds)))
    return "\n".join(lines[1:])


def budgets(manifest: list[dict[str, Any]]) -> str:
    """Processor time by kind and class."""
    lines = [_row(("", "models", "seconds in `ci`", "seconds in `slow`")), _row(["---"] * 4)]
    total = {"ci": 0.0, "slow": 0.0}
    for kind, heading in HEADINGS.items():
        rows = [model for model in manifest if model["kind"] == kind]
        cost = {
            name: sum(model.get("seconds", 0) for model in rows if model["class"] == name)
            for name in total
        }
        for name in total:
            total[name] += cost[name]
        if rows:
            shown = (f"{seconds:.0f}" if seconds else "" for seconds in cost.values())
            lines.append(_row((heading, len(rows), *shown)))
    lines.append(_row(("all", len(manifest), *(f"{c:.0f}" for c in total.values()))))
    return "\n".join(lines)


def breaks(manifest: list[dict[str, Any]]) -> str:
    """What else each bug breaks."""
    lines = [_row(("bug", "breaks")), _row(["---"] * 2)]
    for model in manifest:
        if "breaks" in model:
            lines.append(_row((f"`{model['name']}`", ", ".join(f"`{n}`" for n in model["breaks"]))))
    return "\n".join(lines)


PARTS = {"models": models, "budgets": budgets, "breaks": breaks}


def built(text: str, manifest: list[dict[str, Any]]) -> str:
    """The text with its generated parts as they should be."""
    for name, part in PARTS.items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise SystemExit(f"{README.name} has no part {name}")
        text = before + begin + part(manifest) + end + after
    return text


def main(arguments: list[str]) -> int:
    """The exit code."""
    manifest = json.loads((HERE / "manifest.json").read_text(encoding="utf-8"))["models"]
    before = README.read_text(encoding="utf-8")
    after = built(before, manifest)
    if "--check" in arguments:
        return 0 if before == after else 1
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
