"""/compatibility: would this schema be accepted?"""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.answers import answer, do_not_keep, query_flag
from headrace.registry.api.payloads import SchemaPayload, read_body
from headrace.registry.api.services import services
from headrace.registry.domain import SchemaRequest, parse_version
from headrace.registry.names import subject_name
from headrace.registry.service.compatibility import Verdict

blueprint = Blueprint("compatibility", __name__)


@blueprint.post("/compatibility/subjects/<subject:subject>/versions")
def check_subject(subject: str) -> Response:
    wanted = read_body(SchemaPayload, SchemaRequest)
    verdict = services().compatibility.check_subject(
        subject_name(subject), wanted, normalize=query_flag("normalize"), verbose=query_flag("verbose")
    )
    return _answer(verdict)


@blueprint.post("/compatibility/subjects/<subject:subject>/versions/<segment:version>")
def check_version(subject: str, version: str) -> Response:
    wanted = read_body(SchemaPayload, SchemaRequest)
    verdict = services().compatibility.check_version(
        subject_name(subject),
        parse_version(version),
        wanted,
        normalize=query_flag("normalize"),
        verbose=query_flag("verbose"),
    )
    return _answer(verdict)


def _answer(verdict: Verdict) -> Response:
    if not verdict.is_settled:
        do_not_keep()
    body: dict[str, object] = {"is_compatible": verdict.is_compatible}
    if query_flag("verbose"):
        body["messages"] = list(verdict.messages)
    return answer(body)
