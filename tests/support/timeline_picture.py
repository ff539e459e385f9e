"""Makes `docs/timeline.png` anew: `.venv/bin/python -m tests.support.timeline_picture`.

A replay of text that Python ships, with a slow back end that fails now and then, drawn
by `kvtier timeline` and photographed by Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.chromium import chromium

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "timeline.png"
REPLAY = (
    "replay --limit 80 --concurrency 8 --slow-backend 2 --host-blocks 16 --seed 7 "
    "--faults probe_error=0.1,load_error=0.15 --spans spans.jsonl"
)
SHOWN = """
const window_of = call => [call.start - 6e6, call.end + 24e6];
const rows_of = call => lanes.slice(Math.min(...call.to.map(bar => bar.lane.number))).slice(0, 12);
const kinds_of = call => {
  const [from, to] = window_of(call);
  const long = bar => bar.length > 1e6 && bar.start < to && bar.end > from;
  const found = rows_of(call).flatMap(lane => lane.bars.filter(long));
  const joined = found.filter(bar => bar.ticks.length).length;
  return new Set(found.map(bar => bar.kind)).size + joined / 50;
};
const calls = bars.filter(bar => bar.kind === 'batch' && bar.to.length > 3);
const best = calls.reduce((one, other) => (kinds_of(other) > kinds_of(one) ? other : one));
activate(best, true);
look(...window_of(best));
$('scroll').scrollTop = (rows_of(best)[0].number - done.length) * LANE;
untip();
"""
"""The call of the back end with the most to see around it."""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for command in (REPLAY, "timeline spans.jsonl"):
            subprocess.run(
                [sys.executable, "-m", "kvtier", *command.split()], cwd=folder, check=True
            )
        with chromium(folder) as page:
            page.open(folder / "spans.html")
            page.run(SHOWN)
            page.settle()
            page.picture(PICTURE)


if __name__ == "__main__":
    main()
