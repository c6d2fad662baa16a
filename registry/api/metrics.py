"""/metrics, for Prometheus."""

from __future__ import annotations

from flask import Blueprint, Response, current_app, request

from registry.operation.metrics import MetricsPage

blueprint = Blueprint("metrics", __name__)

EXTENSION = "registry_metrics"


@blueprint.get("/metrics")
def metrics() -> Response:
    page = current_app.extensions[EXTENSION]
    assert isinstance(page, MetricsPage)
    body, content_type = page.page(request.headers.get("Accept", ""))
    return Response(body, headers={"Content-Type": content_type})
