"""The root, liveness and readiness, and metadata of the registry."""

from __future__ import annotations

from flask import Blueprint, Response, current_app

from headrace.registry.api.metrics import EXTENSION as METRICS_PAGE
from headrace.registry.api.responses import json_response
from headrace.registry.api.services import services

blueprint = Blueprint("health", __name__)

LOST_LINES = "audit_lines_lost"


@blueprint.get("/")
@blueprint.post("/")
def root() -> Response:
    return json_response({})


@blueprint.get("/healthz")
def liveness() -> Response:
    """Response to a liveness probe. It does not depend on the database, because restarting the registry would not
    repair the database."""
    return json_response({"status": "ok"})


@blueprint.get("/readyz")
def ready() -> Response:
    """Response to a readiness probe. If the database is unreachable, the response has status 500 and the cause.

    Lines that are missing in the audit log are a number in the response: a full disk must not stop clients.
    """
    services().configuration.read_scope(None, in_effect=False)
    lost = current_app.extensions[METRICS_PAGE].lost_audit_lines
    return json_response({"status": "ready", **({LOST_LINES: lost} if lost else {})})


@blueprint.get("/v1/metadata/id")
def cluster_id() -> Response:
    name = f"headrace-{services().lookup.identity()}"
    return json_response({"scope": {"path": [], "clusters": {"kafka-cluster": "", "schema-registry-cluster": name}}})


@blueprint.get("/v1/metadata/version")
def version() -> Response:
    return json_response({"version": services().version, "commitId": services().commit})


@blueprint.get("/v1/metadata/deployment")
def deployment() -> Response:
    return json_response({"attributes": []})
