"""The metrics of the platform and of the console for Prometheus."""

from __future__ import annotations

from flask import Blueprint, Response, abort, request

from headrace.console.pages.now import read_status
from headrace.console.request_counts import request_counts

blueprint = Blueprint("metrics", __name__)

LIMIT_S = 5.0
"""A scrape waits for this time for the status; Prometheus waits for 10 s by default."""


@blueprint.get("/metrics")
def page() -> Response:
    # prometheus_client takes 2 MB.
    from headrace.pipeline.metrics import render, status_metrics

    status = read_status(limit_s=LIMIT_S)
    if not status.is_known:
        abort(503, f"The status is not known: {status.reason}")
    metrics = [*status_metrics(status.known), *request_counts().metrics()]
    body, content_type = render(metrics, request.headers.get("Accept", ""))
    return Response(body, content_type=content_type)
