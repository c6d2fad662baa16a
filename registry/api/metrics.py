"""/metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, current_app, request

from headrace.registry.api.services import services
from headrace.registry.errors import StoreError
from headrace.registry.operation.metrics import MetricsPage

blueprint = Blueprint("metrics", __name__)

EXTENSION = "registry_metrics"


@blueprint.get("/metrics")
def metrics() -> Response:
    page = current_app.extensions[EXTENSION]
    assert isinstance(page, MetricsPage)
    body, content_type = page.page(request.headers.get("Accept", ""), _stored())
    return Response(body, headers={"Content-Type": content_type})


def _stored() -> Mapping[str, int] | None:
    try:
        return services().database.read(lambda repository: repository.totals())
    except StoreError:
        # What the processes counted is wanted most when the database is down.
        return None
