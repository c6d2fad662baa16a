"""Metrics of the platform for Prometheus: those of `pipeline.status`, as the page `/metrics` of the console and as
`headrace status --format prometheus`. Registry and broker serve their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder

from headrace.pipeline.status.finding import PlatformStatus
from headrace.pipeline.status.metric import METRICS, MetricType, StatusMetric

SUFFIXES: Final = ("_bucket", "_count", "_sum")


def render(metrics: Iterable[StatusMetric], accept: str = "") -> tuple[bytes, str]:
    """Returns the metrics and their content type.

    Args:
        accept: the value of the `Accept` header of the request; "" returns Prometheus's text format.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_MetricsCollector(_families(metrics)))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def status_metrics(status: PlatformStatus) -> list[StatusMetric]:
    return [metric for fact in status.facts for metric in fact.metrics]


class _MetricsCollector:
    """Passes a list of metrics to prometheus_client, which requires an object with a method `collect`."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Sequence[Metric]:
        return self._metrics


def _families(metrics: Iterable[StatusMetric]) -> list[Metric]:
    """Returns prometheus_client's form of the metrics, in the order of `METRICS`."""
    samples: dict[str, list[StatusMetric]] = {}
    for one in metrics:
        samples.setdefault(_family_name(one.name), []).append(one)
    found = []
    for name, row in METRICS.items():
        if name in samples:
            family = Metric(name.removesuffix("_total"), row.text, row.kind)
            for one in samples[name]:
                family.add_sample(one.name, dict(one.labels), one.value)
            found.append(family)
    return found


def _family_name(name: str) -> str:
    """Returns the name of the row of `METRICS` to which a sample belongs.

    Raises:
        KeyError: there is none.
    """
    if name in METRICS:
        return name
    base = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)
    if METRICS[base].kind is not MetricType.HISTOGRAM:
        raise KeyError(name)
    return base
