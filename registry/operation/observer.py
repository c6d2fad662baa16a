"""What the server tells of every answer goes to the metrics and, where there is one, to the access log."""

from __future__ import annotations

import logging
from typing import Any

from headrace.registry.access.users import Principal
from headrace.registry.operation.access_log import AccessLog
from headrace.registry.operation.metrics import RequestMetrics
from headrace.registry.operation.shared_counts import SharedCounts

logger = logging.getLogger(__name__)


class Operation:
    """An `Observer` of one worker process; called in its event loop."""

    def __init__(self, metrics: RequestMetrics | None, log: AccessLog | None = None) -> None:
        self._metrics = metrics
        self._log = log

    def answered(
        self,
        scope: Any,
        route: str,
        status: int,
        size: int,
        seconds: float,
        principal: Principal | None,
        *,
        cached: bool,
    ) -> None:
        if self._metrics is not None:
            self._metrics.count(scope["method"], route, status, seconds, cached=cached)
        if self._log is not None:
            self._log.write(scope, status, size, seconds, "" if principal is None else principal.name, cached=cached)


def observer_of(counts: SharedCounts, access_log: str) -> Operation:
    """The observer of this worker process.

    Args:
        counts: what it takes a slot of.
        access_log: see `AccessLog`; "" is none.
    """
    log = AccessLog(access_log) if access_log else None
    if not counts.claim():
        # The workers that are being replaced have not ended yet, all of them.
        logger.error("requests not counted: cause=no_free_slot")
        return Operation(None, log)
    return Operation(RequestMetrics(counts), log)
