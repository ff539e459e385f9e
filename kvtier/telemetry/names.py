"""Every name that kvtier's telemetry uses, as `spec/telemetry/` defines it.

The registry there is the source: what a name means, its type and its examples are
said there and nowhere else. A test holds this file to it, name by name.
"""

from __future__ import annotations

from typing import Final

SCOPE: Final = "kvtier"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"
"""Of the conventions that `error.type` comes from; kvtier's own names are in `spec/telemetry/`."""

# Spans. Those of a tier are followed by a blank and the tier's label.
PROBE: Final = "probe"
PENDING: Final = "probe.pending"
IN_FLIGHT: Final = "probe.in_flight"
RESOLVED: Final = "probe.resolved"
LOOKUP_BATCH: Final = "lookup_batch"
PROMOTION: Final = "promotion"
CASCADE: Final = "cascade"
SCHEDULER_LOOKUP: Final = "scheduler.lookup"
REQUEST: Final = "request"

# Attributes: where
MANAGER_ID: Final = "kvtier.manager.id"
TIER: Final = "kvtier.tier"
KEY: Final = "kvtier.key"
SCOPE_OF: Final = "kvtier.scope"
REQUEST_ID: Final = "kvtier.request.id"

# Attributes: the probe and its stays
GENERATION: Final = "kvtier.probe.generation"
SEQ: Final = "kvtier.probe.seq"
OPENED_SEQ: Final = "kvtier.probe.opened.seq"
ENDED_SEQ: Final = "kvtier.probe.ended.seq"
PHASE_FROM: Final = "kvtier.probe.phase.from"
PHASE_TO: Final = "kvtier.probe.phase.to"
PHASE_NOW: Final = "kvtier.probe.phase.now"
TRIGGER: Final = "kvtier.probe.trigger"
BIRTH: Final = "kvtier.probe.birth"
OUTCOME: Final = "kvtier.probe.outcome"
VERDICT: Final = "kvtier.probe.verdict"
WAITERS: Final = "kvtier.probe.waiters"
STORED: Final = "kvtier.probe.stored"
TRUNCATED: Final = "kvtier.probe.truncated"
OPEN: Final = "kvtier.probe.open"
DEADLINE_READS: Final = "kvtier.probe.deadline_reads"
EXCUSED_READS: Final = "kvtier.probe.excused_reads"
DISCARDED_ANSWERS: Final = "kvtier.probe.discarded_answers"
JOINED_AT: Final = "kvtier.waiter.time"
"""On the link of a waiter: when it joined, nanoseconds since 1970."""

# Attributes: batches, jobs, passes
BATCH_KEYS: Final = "kvtier.lookup_batch.keys"
BATCH_ANSWERS: Final = "kvtier.lookup_batch.answers"
BATCH_HITS: Final = "kvtier.lookup_batch.hits"
BATCH_UNTRACED: Final = "kvtier.lookup_batch.untraced"
BATCH_QUEUE_TIME: Final = "kvtier.lookup_batch.queue_time"
JOB_ID: Final = "kvtier.job.id"
JOB_BLOCKS: Final = "kvtier.job.blocks"
JOB_MOVED: Final = "kvtier.job.moved"
JOB_OUTCOME: Final = "kvtier.job.outcome"
LOOKUP_BLOCKS: Final = "kvtier.lookup.blocks"
LOOKUP_HIT_BLOCKS: Final = "kvtier.lookup.hit_blocks"
LOOKUP_RESULT: Final = "kvtier.lookup.result"
LOOKUP_BEHIND: Final = "kvtier.lookup.behind"
ERROR_TYPE: Final = "error.type"
"""OpenTelemetry's own."""

# Metrics
TRANSITIONS: Final = "kvtier.probe.transitions"
PROBE_COUNT: Final = "kvtier.probe.count"
LOOKUPS: Final = "kvtier.probe.lookups"
BATCH_DURATION: Final = "kvtier.lookup_batch.duration"
PROBE_DURATION: Final = "kvtier.probe.duration"
DROPPED: Final = "kvtier.telemetry.dropped"
DROPPED_ITEM: Final = "kvtier.telemetry.item"
"""Attribute of the one above: what was dropped."""
