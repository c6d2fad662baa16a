"""The metrics of webhooks for Prometheus. Used by the event loop only."""

from __future__ import annotations

import time

from prometheus_client import Counter, Gauge

from headrace.gateway.metrics import GatewayMetrics


class WebhookCounts:
    """The counts of one webhook."""

    def __init__(self, delivered: Counter, dead_letters: Counter, failures: Counter, failing: Gauge) -> None:
        self._delivered = delivered
        self._dead_letters = dead_letters
        self._failures = failures
        self._failing_since: float | None = None
        failing.set_function(self._failing_s)

    def count_delivered(self, messages: int) -> None:
        self._delivered.inc(messages)
        self._failing_since = None

    def count_dead_letter(self) -> None:
        self._dead_letters.inc()
        self._failing_since = None

    def count_failure(self) -> None:
        self._failures.inc()
        if self._failing_since is None:
            self._failing_since = time.monotonic()

    def _failing_s(self) -> float:
        return 0.0 if self._failing_since is None else time.monotonic() - self._failing_since


class WebhookMetrics:
    """The counts of all webhooks."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._messages = Counter(
            "headrace_gateway_webhook_messages",
            "Messages that the receiver accepted, or that became dead letters.",
            ["webhook", "result"],
            registry=metrics.registry,
        )
        self._failures = Counter(
            "headrace_gateway_webhook_failures",
            "Requests that are sent again.",
            ["webhook"],
            registry=metrics.registry,
        )
        self._failing = Gauge(
            "headrace_gateway_webhook_failing_seconds",
            "Time since the first failure of the messages that are sent again; 0 without such messages.",
            ["webhook"],
            registry=metrics.registry,
        )

    def of(self, webhook: str) -> WebhookCounts:
        return WebhookCounts(
            self._messages.labels(webhook, "delivered"),
            self._messages.labels(webhook, "dead_letter"),
            self._failures.labels(webhook),
            self._failing.labels(webhook),
        )
