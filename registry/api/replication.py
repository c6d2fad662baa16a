"""POST /replication: returns the state of all subjects and the settings if they have changed, and the subjects and
schemas that the replica requests."""

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
