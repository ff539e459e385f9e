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

from kvtier.errors import BadInput, UsageError
from kvtier.keys import Namespace
from kvtier.lifecycle import LookupObserver
from kvtier.runtime import Runtime
from kvtier.tiers.base import PrimaryView, SecondaryTierManager
from kvtier.tiers.store import BlockStore, StoreTier

__all__ = ["TierFactory", "TierSetup", "known_tiers", "open_tier", "split_spec"]

_GROUP = "kvtier.tiers"
_OWN = {
    "memory": "kvtier.tiers.memory:from_spec",
    "fs": "kvtier.tiers.filesystem:from_spec",
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
    installed = {point.name: point for point in entry_points(group=_GROUP)}
    own = {name: EntryPoint(name, value, _GROUP) for name, value in _OWN.items()}
    return installed | own


def open_tier(spec: str, setup: TierSetup) -> SecondaryTierManager:
    """The tier that `spec` names.

    Raises `BadInput` if there is no such tier, it cannot be imported, or it
    refuses its argument.
    """
    name, arg = split_spec(spec)
    known = known_tiers()
    if name not in known:
        names = ", ".join(sorted(known))
        raise BadInput(f"tier {spec!r}", f"there is no tier {name!r}", f"one of {names}")
    try:
        factory = cast(TierFactory, known[name].load())
    except (ImportError, AttributeError) as error:
        raise BadInput(
            f"tier {spec!r}", f"{known[name].value} cannot be imported: {error}"
        ) from error
    tier = factory(arg, setup)
    if not isinstance(tier, SecondaryTierManager):
        raise BadInput(
            f"tier {spec!r}",
            f"{known[name].value} returned {type(tier).__name__}",
            "a SecondaryTierManager",
        )
    return tier
