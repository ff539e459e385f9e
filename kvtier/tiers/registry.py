"""Tiers by name: what `fs:/some/dir` on a command line stands for.

A tier is named `NAME` or `NAME:ARG`, and what follows the first colon is the
tier's own affair. A name is an entry point of the group `kvtier.tiers`, so a
package of its own can bring a tier:

    [project.entry-points."kvtier.tiers"]
    mine = "my_package.tier:from_spec"

where `from_spec(arg, setup)` returns a `SecondaryTierManager`, and raises
`BadInput` if `arg` makes no sense. The names of kvtier's own tiers are always
kvtier's, installed or run from a checkout.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from kvtier.errors import BadInput, KvtierError, UsageError
from kvtier.keys import Namespace
from kvtier.lifecycle import LookupObserver
from kvtier.log import shown
from kvtier.runtime import Runtime
from kvtier.tiers.base import PrimaryView, SecondaryTierManager
from kvtier.tiers.store import BlockStore, StoreTier

__all__ = ["TierFactory", "TierSetup", "known_tiers", "open_tier", "split_spec"]

_GROUP = "kvtier.tiers"
_OWN = {
    name: EntryPoint(name, f"kvtier.tiers.{module}:from_spec", _GROUP)
    for name, module in (("memory", "memory"), ("fs", "filesystem"))
}


def _unwrapped(store: BlockStore) -> BlockStore:
    return store


@dataclass(frozen=True, slots=True)
class TierSetup:
    """What every tier is built with, whatever its kind.

    `label` names it in traces and threads (`1:fs`). `deadline` and
    `verdict_lifetime` are in seconds. `wrap` goes around the back end of a tier,
    to make it slow or faulty on purpose. Raises `UsageError` if blocks of
    `namespace` are not the size of the slots of `view`.
    """

    view: PrimaryView
    namespace: Namespace
    label: str
    runtime: Runtime
    deadline: float | None = None
    verdict_lifetime: float | None = None
    observer: LookupObserver | None = None
    wrap: Callable[[BlockStore], BlockStore] = _unwrapped

    def __post_init__(self) -> None:
        if self.namespace.block_bytes != self.view.block_bytes:
            raise UsageError(
                f"tier {self.label}: blocks of {self.namespace.block_bytes} bytes do not fit "
                f"slots of {self.view.block_bytes} bytes"
            )

    def tier(self, store: BlockStore, tier_type: str) -> StoreTier:
        """The tier of kind `tier_type` over `store`."""
        return StoreTier(
            self.wrap(store),
            self.view,
            tier_type=tier_type,
            label=self.label,
            runtime=self.runtime,
            deadline=self.deadline,
            verdict_lifetime=self.verdict_lifetime,
            observer=self.observer,
        )


TierFactory = Callable[[str | None, TierSetup], SecondaryTierManager]
"""What an entry point is: `from_spec(arg, setup)`."""


def split_spec(spec: str) -> tuple[str, str | None]:
    """Name and argument of `NAME` or `NAME:ARG`."""
    name, colon, arg = spec.partition(":")
    return name, arg if colon else None


def known_tiers() -> dict[str, EntryPoint]:
    """The tiers that can be opened, by name."""
    return {point.name: point for point in entry_points(group=_GROUP)} | _OWN


def open_tier(spec: str, setup: TierSetup) -> SecondaryTierManager:
    """The tier that `spec` names.

    Raises `BadInput` if there is no such tier, it cannot be imported, it refuses
    its argument, or it fails in whatever way while it is made.
    """
    name, arg = split_spec(spec)
    where = f"tier {spec!r}"
    # Looking through all that is installed takes milliseconds: only for a name that needs it.
    known = _OWN if name in _OWN else known_tiers()
    if name not in known:
        names = ", ".join(sorted(known))
        raise BadInput(where, f"there is no tier {name!r}", f"one of {names}")
    point = known[name]
    try:
        factory = cast(TierFactory, point.load())
    except (Exception, SystemExit) as error:
        raise BadInput(where, f"{point.value} cannot be imported: {_told(error)}") from error
    try:
        tier = factory(arg, setup)
    except KvtierError:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(where, f"{point.value} failed: {_told(error)}") from error
    if not isinstance(tier, SecondaryTierManager):
        problem = f"{point.value} returned {type(tier).__name__}"
        raise BadInput(where, problem, "a SecondaryTierManager")
    return tier


def _told(error: BaseException) -> str:
    """What went wrong in somebody else's code, which may not be able to say it."""
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:
        return shown(error)
