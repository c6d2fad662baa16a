"""Whether the console serves, for probes, and how many of its responses were errors. The response depends on no other
part."""

from __future__ import annotations

from flask import Blueprint

from headrace.console.request_counts import request_counts

blueprint = Blueprint("health", __name__)


@blueprint.get("/healthz")
def healthz() -> dict[str, str | int]:
    responses, server_errors = request_counts().totals()
    return {"status": "ok", "responses": responses, "server_errors": server_errors}
