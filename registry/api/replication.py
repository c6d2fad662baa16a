"""POST /replication: returns the changes that a replica of this registry has not copied yet."""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.payloads import ReplicationPayload, read_body
from headrace.registry.api.responses import json_response
from headrace.registry.api.services import services
from headrace.registry.replication.feed import ReplicationRequest, build_response, response_json

blueprint = Blueprint("replication", __name__)


@blueprint.post("/replication")
def read_changes() -> Response:
    request = read_body(ReplicationPayload, ReplicationRequest)
    return json_response(
        response_json(services().database.read(lambda repository: build_response(request, repository)))
    )
