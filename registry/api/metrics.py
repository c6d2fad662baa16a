"""/metrics: the page that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, current_app, request

from headrace.registry.api.services import services
from headrace.registry.domain import ReplicationState
from headrace.registry.errors import StoreError
from headrace.registry.operation.metrics import RegistryMetricsPage

blueprint = Blueprint("metrics", __name__)

EXTENSION = "registry_metrics"


@blueprint.get("/metrics")
def metrics() -> Response:
    page = current_app.extensions[EXTENSION]
    assert isinstance(page, RegistryMetricsPage)
    stored, replication = _stored()
    lag_s = None if replication is None or replication.is_promoted else replication.lag_s(services().now_ms())
    body, content_type = page.render(request.headers.get("Accept", ""), stored, lag_s)
    return Response(body, headers={"Content-Type": content_type})


def _stored() -> tuple[Mapping[str, int] | None, ReplicationState | None]:
    try:
        return services().database.read(lambda repository: (repository.counts(), repository.replication_state()))
    except StoreError:
        # The page then has only the request metrics, which matter most while the database is down.
        return None, None
