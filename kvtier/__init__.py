"""Tiered offloading of KV cache blocks, with an asynchronous lookup that can be checked.

An inference engine keeps the attention state of prompts it has seen in blocks,
and moves blocks that no longer fit the accelerator to slower tiers: host
memory, disk, another machine. kvtier is that machinery without the engine, and
its words are those of vLLM's `kv_offload`. Where to begin:

* `kvtier.lifecycle`: the life of a probe, the question "does this slow tier
  have that block?"; one table, which everything else obeys.
* `kvtier.lookup`: that table as a machine, its worker thread, its manager.
* `kvtier.tiers`: the interfaces a tier implements, and the tiers that come along.
* `kvtier.tiering`: several tiers behind one manager.
* `kvtier.scheduler`: how far a request's prefix reaches, and the step loop.
* `kvtier.replay`: a workload driven through all of it (`kvtier replay`).
"""

from __future__ import annotations

__all__ = ["__version__"]

__version__: str


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module 'kvtier' has no attribute {name!r}")
    # Read when it is asked for: it takes most of the time of an import.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvtier")
    except PackageNotFoundError:  # a source tree on the path, installed nowhere
        return "0+unknown"
