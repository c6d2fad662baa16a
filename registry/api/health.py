"""The root, what the registry says of itself, and whether it is alive and ready."""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.answers import answer
from headrace.registry.api.services import services

blueprint = Blueprint("health", __name__)


@blueprint.get("/")
@blueprint.post("/")
def root() -> Response:
    return answer({})


@blueprint.get("/healthz")
def alive() -> Response:
    """The process answers; the database is not asked, since restarting would not mend it."""
    return answer({"status": "ok"})


@blueprint.get("/readyz")
def ready() -> Response:
    """The database answers too; 500 with the cause when it does not."""
    services().configuration.of_scope(None, in_effect=False)
    return answer({"status": "ready"})


@blueprint.get("/v1/metadata/id")
def cluster_id() -> Response:
    name = f"headrace-{services().lookup.identity()}"
    return answer({"scope": {"path": [], "clusters": {"kafka-cluster": "", "schema-registry-cluster": name}}})


@blueprint.get("/v1/metadata/version")
def version() -> Response:
    return answer({"version": services().version, "commitId": ""})


@blueprint.get("/v1/metadata/deployment")
def deployment() -> Response:
    return answer({"attributes": []})
