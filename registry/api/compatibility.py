"""/compatibility: checks a schema without registering it."""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.payloads import SchemaPayload, read_body
from headrace.registry.api.responses import disable_caching, json_response, query_flag
from headrace.registry.api.services import services
from headrace.registry.domain import SchemaRequest, parse_version
from headrace.registry.names import subject_name
from headrace.registry.service.compatibility import CompatibilityVerdict

blueprint = Blueprint("compatibility", __name__)


@blueprint.post("/compatibility/subjects/<subject:subject>/versions")
def check_subject(subject: str) -> Response:
    schema = read_body(SchemaPayload, SchemaRequest)
    verdict = services().compatibility.check_subject(
        subject_name(subject), schema, normalize=query_flag("normalize"), verbose=query_flag("verbose")
    )
    return _response(verdict)


@blueprint.post("/compatibility/subjects/<subject:subject>/versions/<segment:version>")
def check_version(subject: str, version: str) -> Response:
    schema = read_body(SchemaPayload, SchemaRequest)
    verdict = services().compatibility.check_version(
        subject_name(subject),
        parse_version(version),
        schema,
        normalize=query_flag("normalize"),
        verbose=query_flag("verbose"),
    )
    return _response(verdict)


def _response(verdict: CompatibilityVerdict) -> Response:
    if not verdict.is_final:
        disable_caching()
    body: dict[str, object] = {"is_compatible": verdict.is_compatible}
    if query_flag("verbose"):
        body["messages"] = list(verdict.messages)
    return json_response(body)
