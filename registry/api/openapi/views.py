"""/openapi.json."""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.answers import to_json
from headrace.registry.api.openapi.document import document
from headrace.registry.api.services import services

blueprint = Blueprint("openapi", __name__)


@blueprint.get("/openapi.json")
def openapi() -> Response:
    # Each time anew, since hardly anyone asks twice.
    return Response(to_json(document(services().version)), headers={"Content-Type": "application/json"})
