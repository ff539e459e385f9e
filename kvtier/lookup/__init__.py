"""Asynchronous lookups: the table that decides, the worker that asks, the manager between."""

from kvtier.lookup.entry import EntryView, LookupCounts, Question, Snapshot
from kvtier.lookup.guards import LookupLimits
from kvtier.lookup.manager import AsyncLookupManager
from kvtier.lookup.table import LookupTable
from kvtier.lookup.worker import LookupWorker

__all__ = [
    "AsyncLookupManager",
    "EntryView",
    "LookupCounts",
    "LookupLimits",
    "LookupTable",
    "LookupWorker",
    "Question",
    "Snapshot",
]
