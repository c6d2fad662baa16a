"""/metrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping

from flask import Blueprint, Response, current_app, request

from headrace.registry.api.services import services
from headrace.registry.domain import Following
from headrace.registry.errors import StoreError
from headrace.registry.operation.metrics import MetricsPage

blueprint = Blueprint("metrics", __name__)

EXTENSION = "registry_metrics"


@blueprint.get("/metrics")
def metrics() -> Response:
    page = current_app.extensions[EXTENSION]
    assert isinstance(page, MetricsPage)
    stored, following = _stored()
    behind_s = None if following is None or following.is_promoted else following.behind_s(services().now_ms())
    body, content_type = page.page(request.headers.get("Accept", ""), stored, behind_s)
    return Response(body, headers={"Content-Type": content_type})


def _stored() -> tuple[Mapping[str, int] | None, Following | None]:
    try:
        return services().database.read(lambda repository: (repository.totals(), repository.following()))
    except StoreError:
        # What the processes counted is wanted most when the database is down.
        return None, None
