"""A history of probes as a page that can be looked at, zoomed, searched and heard.

`model.py` puts spans into lanes, `page.py` makes the page and writes it, and the page
itself is in `page.html`, `page.css` and four scripts. `counterexample.py` tells what
TLC found as spans, for the same page.
"""

from __future__ import annotations

from kvtier.check.timeline.counterexample import counterexample_spans
from kvtier.check.timeline.model import Timeline, arranged
from kvtier.check.timeline.page import page_of, render_timeline, write_page

__all__ = [
    "Timeline",
    "arranged",
    "counterexample_spans",
    "page_of",
    "render_timeline",
    "write_page",
]
