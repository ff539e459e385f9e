"""Who is asking: the per-request context handed to every tier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ReqContext"]


@dataclass(frozen=True, slots=True)
class ReqContext:
    """Context of one request.

    `req_id` is unique among live requests. `kv_transfer_params` is what the
    client sent along for tiers to read (a tenant, for example).
    `trace_headers` are the request's own W3C trace context headers, so that
    spans made on its behalf join its trace.
    """

    req_id: str
    kv_transfer_params: Mapping[str, Any] | None = field(default=None, hash=False)
    trace_headers: Mapping[str, str] | None = field(default=None, hash=False)
