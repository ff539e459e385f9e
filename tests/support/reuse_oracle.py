"""An independent count of what a replay must reuse, and from which tier.

Assumes one slow tier that keeps everything, one request at a time, each ended
before the next begins, and a primary with room for the longest prompt. Written
from the prose of the design and from nothing else.

A request reuses the blocks at its start that were ever seen. Those that the
primary has are hits of the primary; the others are brought up from the slow
tier, one after another from the front, each in place of the least recently used
block that this request does not itself reuse. Then the reused blocks count as
used, last first. The rest of the prompt is stored one block after another: one
that is there is passed over and stays, one that is not takes the place of the
least recently used block that this prompt has not passed yet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence


def reused_by_tier(prompts: Iterable[Sequence[Hashable]], slots: int) -> tuple[int, int]:
    """Blocks reused out of an LRU primary of `slots` slots, and out of the slow tier."""
    seen: set[Hashable] = set()
    lru: OrderedDict[Hashable, None] = OrderedDict()  # least recently used first

    def bring_in(block: Hashable, kept: set[Hashable]) -> None:
        if len(lru) == slots:
            del lru[next(old for old in lru if old not in kept)]
        lru[block] = None

    from_primary = from_slow = 0
    for prompt in prompts:
        end = next((i for i, block in enumerate(prompt) if block not in seen), len(prompt))
        reused = prompt[:end]
        absent = [block for block in reused if block not in lru]
        from_slow += len(absent)
        from_primary += len(reused) - len(absent)
        for block in absent:
            bring_in(block, set(reused))
        for block in reversed(reused):
            lru.move_to_end(block)
        passed: set[Hashable] = set()
        for block in prompt[end:]:
            if block not in lru:
                bring_in(block, passed)
            passed.add(block)
        seen.update(prompt)
    return from_primary, from_slow
