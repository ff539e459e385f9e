"""Which `AsyncLookupManager` can be traced: one that has these parts and uses them so.

vLLM's module carries no version, and builds from source have none that means
anything. So what is asked is what the tracing relies on: the phases, the fields of
an entry, and who uses which attribute. It is read off the code, before there is any
manager; nothing is run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dis import get_instructions
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

__all__ = ["MODULE", "SUPPORTED", "misfits"]

MODULE: Final = "vllm.v1.kv_offload.tiering.async_lookup"
SUPPORTED: Final = (
    "the lookup lifecycles with the phases PENDING, IN_FLIGHT and RESOLVED, as in vLLM 0.30 to 0.33"
)

_PHASES: Final = ("PENDING", "IN_FLIGHT", "RESOLVED")
_FIELDS: Final = ("generation", "phase", "result", "request_ids")
_ATTRIBUTES: Final = {
    "_tier_type",
    "_lookup_state",
    "_req_keys",
    "_next_generation",
    "_lookup_batch",
    "_lookup_queue",
    "_pending_results",
    "_need_to_drain",
    "_thread",
}
"""What `__init__` sets. What else it may set is not touched."""
_USES: Final = {
    "lookup": {"drain_results", "_lookup_state", "_lookup_batch", "append", "_req_keys"},
    "flush": {"drain_results", "_lookup_state", "_lookup_batch", "_lookup_queue", "put"},
    "drain_results": {"_pending_results", "get_nowait", "_lookup_state"},
    "mark_miss": {"_lookup_state"},
    "cleanup": {"_req_keys", "_lookup_state", "request_ids"},
    "shutdown": {"_lookup_queue", "put", "_thread", "join", "drain_results"},
    "_worker": {"_lookup_queue", "get", "batch_lookup", "_pending_results", "put"},
}
"""The methods, and the names that each of them uses."""


def misfits(module: ModuleType) -> list[str]:
    """What this module lacks or has otherwise, a phrase each. Empty: it can be traced."""
    manager = getattr(module, "AsyncLookupManager", None)
    if not isinstance(manager, type):
        return ["there is no class AsyncLookupManager"]
    return [*_phases(module), *_entry(module), *_methods(manager)]


def _phases(module: ModuleType) -> Iterator[str]:
    phases = getattr(module, "LookupPhase", None)
    if phases is None:
        yield "its probes have no phases (no LookupPhase)"
    elif tuple(members := getattr(phases, "__members__", ())) != _PHASES:
        yield f"LookupPhase has {', '.join(members) or 'no members'}"


def _entry(module: ModuleType) -> Iterator[str]:
    entry = getattr(module, "LookupState", None)
    if not (isinstance(entry, type) and dataclasses.is_dataclass(entry)):
        yield "there is no dataclass LookupState"
        return
    fields = tuple(field.name for field in dataclasses.fields(entry))
    if fields != _FIELDS:
        yield f"LookupState has the fields {', '.join(fields)}"


def _methods(manager: type[Any]) -> Iterator[str]:
    init = vars(manager).get("__init__")
    if not isinstance(init, FunctionType):
        yield "AsyncLookupManager has no __init__ of its own"
    else:
        set_here = {i.argval for i in get_instructions(init) if i.opname == "STORE_ATTR"}
        if missing := sorted(_ATTRIBUTES - set_here):
            yield f"AsyncLookupManager sets no {', '.join(missing)}"
    for name, uses in _USES.items():
        method = vars(manager).get(name)
        if not isinstance(method, FunctionType):
            yield f"AsyncLookupManager has no method {name}"
        elif missing := sorted(uses - _names(method.__code__)):
            yield f"{name} does not use {', '.join(missing)}"


def _names(code: CodeType) -> set[str]:
    """Every name that the code, or code inside it, looks up."""
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)
