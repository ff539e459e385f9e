"""`python -m tests.bench`: what kvtier costs, beside what it can be measured against.

Ratios first: below 1 is less than the other. They were measured in turn in this run,
so they mean something on any machine, also a busy one; the times beside them mean
something on this one. Between the brackets lies the middle half of the rounds, and
`noise` is how far apart the middle half of the plain times was. Exit code 1 if a bound
was not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvtier
from tests.bench.lookups import lookup_results
from tests.bench.measure import Result
from tests.bench.replays import TRACE, replay_results
from tests.bench.telemetry import instrumented_results, telemetry_results
from tests.peer.vllm_wheel import NEWEST, PeerUnavailable, load

PARTS = ["lookups", "telemetry", "replay"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=41, help="samples of each side (default 41)")
    parser.add_argument("--only", choices=PARTS, help="leave the others out")
    parser.add_argument("--trace", type=Path, default=TRACE, help="what to replay")
    options = parser.parse_args(arguments)

    skipped: list[str] = []
    results: list[Result] = []
    about: dict[str, Any] = {
        "kvtier": kvtier.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
    }
    say = _nothing if options.json else print
    say("  ".join(f"{name} {value}" for name, value in about.items()))
    for result in _run(options, skipped):
        results.append(result)
        say(_line(result), flush=True)
    about["load_after"] = round(os.getloadavg()[0], 2)
    say(f"load_after {about['load_after']}", *(f"skipped: {what}" for what in skipped), sep="\n")
    if options.json:
        about |= {"skipped": skipped, "results": [result.as_json() for result in results]}
        print(json.dumps({"schema": "kvtier.bench/1", **about}, indent=2))
    return 0 if all(result.holds for result in results) else 1


def _nothing(*_: object, **__: object) -> None:
    pass


def _run(options: argparse.Namespace, skipped: list[str]) -> Iterator[Result]:
    if options.only in (None, "lookups"):
        try:
            peer = load()
        except PeerUnavailable as error:
            peer = None
            skipped.append(f"the comparison with vLLM: {error}")
        yield from lookup_results(peer, f"vLLM {NEWEST}", options.rounds)
    if options.only in (None, "telemetry"):
        yield from telemetry_results(options.rounds)
        try:
            yield from instrumented_results(load, f"vLLM {NEWEST}", options.rounds)
        except PeerUnavailable as error:
            skipped.append(f"an instrumented vLLM: {error}")
    if options.only in (None, "replay"):
        if options.trace.is_file():
            yield from replay_results(options.trace)
        else:
            skipped.append(
                f"the replay: there is no {options.trace.name} in {options.trace.parent}"
            )


def _line(result: Result) -> str:
    shown = result.ratio or result.ours
    text = f"{result.name:42}{shown.median:9.3f}"
    text += f" [{shown.low:.3f}..{shown.high:.3f}]" if shown.rounds > 1 else " " * 15
    if result.ratio is not None and result.theirs is not None:
        text += f"  {result.ours.median:8.4g} / {result.theirs.median:8.4g} {result.unit}"
        text += f" ({result.beside})"
        if shown.rounds > 1:
            text += f"  noise {result.ours.noise:.0%} / {result.theirs.noise:.0%}"
    else:
        text += f"  {result.unit}"
    if result.bound is not None:
        text += f"  {'within' if result.holds else 'MISSES'} {result.bound:g}"
    return text


if __name__ == "__main__":
    sys.exit(main())
