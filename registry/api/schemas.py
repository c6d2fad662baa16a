"""/schemas: by id, and all of them."""

from __future__ import annotations

from flask import Blueprint, Response, request

from registry.api.answers import answer, answer_bytes, page, query_flag, to_json
from registry.api.entities import Profile, listed_entity, schema_entity
from registry.api.profiles import profile
from registry.api.services import services
from registry.domain import SCHEMA_TYPE
from registry.names import SubjectFilter
from registry.service.lookup import FoundSchema

blueprint = Blueprint("schemas", __name__)

SCHEMAS_LIMIT = 1000  # default and most schemas in one answer of GET /schemas


@blueprint.get("/schemas")
def list_schemas() -> Response:
    wanted = SubjectFilter.of(request.args.get("subjectPrefix", ""))
    found = services().lookup.versions_of_subjects(
        wanted, deleted=query_flag("deleted"), latest_only=query_flag("latestOnly")
    )
    return answer([listed_entity(item, profile()) for item in page(found, SCHEMAS_LIMIT)])


@blueprint.get("/schemas/types")
def list_types() -> Response:
    return answer([SCHEMA_TYPE])


@blueprint.get("/schemas/ids/<number:schema_id>")
def get_schema(schema_id: int) -> Response:
    subject = request.args.get("subject") or None
    resolved = request.args.get("format") == "resolved"
    if query_flag("fetchMaxId"):
        found = services().lookup.schema(schema_id, subject=subject, resolved=resolved, with_id_max=True)
        return answer(_entity(found, profile()))
    chosen = profile()
    body = services().answers.get(
        ("schema", schema_id, subject, resolved, chosen),
        lambda: to_json(_entity(services().lookup.schema(schema_id, subject=subject, resolved=resolved), chosen)),
    )
    return answer_bytes(body)


@blueprint.get("/schemas/ids/<number:schema_id>/schema")
def get_schema_text(schema_id: int) -> Response:
    resolved = request.args.get("format") == "resolved"
    body = services().answers.get(
        ("text", schema_id, resolved),
        lambda: services().lookup.schema(schema_id, resolved=resolved).text.encode(),
    )
    return answer_bytes(body)


@blueprint.get("/schemas/ids/<number:schema_id>/subjects")
def list_subjects_of_schema(schema_id: int) -> Response:
    users = services().lookup.users(schema_id, subject=request.args.get("subject"), deleted=query_flag("deleted"))
    return answer(page(sorted({user.subject for user in users})))


@blueprint.get("/schemas/ids/<number:schema_id>/versions")
def list_versions_of_schema(schema_id: int) -> Response:
    users = services().lookup.users(schema_id, subject=request.args.get("subject"), deleted=query_flag("deleted"))
    return answer(page([{"subject": user.subject, "version": user.version} for user in users]))


def _entity(found: FoundSchema, chosen: Profile) -> dict[str, object]:
    return schema_entity(
        found.schema, chosen, used=found.used, text=found.text_resolved, schema_id_max=found.schema_id_max
    )
