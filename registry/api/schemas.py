"""/schemas: returns schemas by id or guid and the versions that use them, and lists the versions of subjects."""

from __future__ import annotations

from flask import Blueprint, Response, request

from headrace.registry.api.entities import listed_entity, schema_entity
from headrace.registry.api.responses import bytes_response, json_response, paginate, query_flag
from headrace.registry.api.services import as_shown, profile, services, shown_text
from headrace.registry.domain import SCHEMA_TYPE
from headrace.registry.names import SubjectFilter, qualified, split_subject
from headrace.registry.service.lookup import FoundSchema

blueprint = Blueprint("schemas", __name__)

SCHEMAS_LIMIT = 1000  # default and maximum number of schemas in a response to GET /schemas


@blueprint.get("/schemas")
def list_schemas() -> Response:
    subject_filter = SubjectFilter.of(request.args.get("subjectPrefix", ""))
    found = services().lookup.versions_of_subjects(
        subject_filter,
        deleted=query_flag("deleted"),
        latest_only=query_flag("latestOnly"),
        page=lambda items: paginate(items, SCHEMAS_LIMIT),
        rule_type=request.args.get("ruleType", ""),
        aliases=query_flag("aliases"),
    )
    return json_response([listed_entity(item.stored, profile(), aliases=item.aliases) for item in found])


@blueprint.get("/schemas/types")
def list_types() -> Response:
    return json_response([SCHEMA_TYPE])


@blueprint.get("/schemas/ids/<number:schema_id>")
def get_schema(schema_id: int) -> Response:
    found = services().lookup.schema(schema_id, subject=_subject(), with_id_max=query_flag("fetchMaxId"))
    return json_response(_entity(found))


@blueprint.get("/schemas/ids/<number:schema_id>/schema")
def get_schema_text(schema_id: int) -> Response:
    found = services().lookup.schema(schema_id, subject=_subject())
    return bytes_response(shown_text(found.schema).encode())


@blueprint.get("/schemas/ids/<number:schema_id>/subjects")
def list_subjects_of_schema(schema_id: int) -> Response:
    users = services().lookup.versions_using(schema_id, subject=_subject(), deleted=query_flag("deleted"))
    return json_response(paginate(sorted({user.subject for user in users})))


@blueprint.get("/schemas/ids/<number:schema_id>/versions")
def list_versions_of_schema(schema_id: int) -> Response:
    users = services().lookup.versions_using(schema_id, subject=_subject(), deleted=query_flag("deleted"))
    return json_response(paginate([{"subject": user.subject, "version": user.version} for user in users]))


@blueprint.get("/schemas/guids/<segment:guid>")
def get_schema_by_guid(guid: str) -> Response:
    return json_response(_entity(services().lookup.schema_by_guid(guid)))


@blueprint.get("/schemas/guids/<segment:guid>/ids")
def list_ids_of_guid(guid: str) -> Response:
    return json_response(
        [{"context": context, "id": schema_id} for context, schema_id in services().lookup.ids_of_guid(guid)]
    )


def _subject() -> str | None:
    """The qualified name of the subject in the query of the current request, which determines where a schema id is
    searched; None without one. The subject need not exist or be valid."""
    text = request.args.get("subject")
    return None if not text else qualified(*split_subject(text))


def _entity(found: FoundSchema) -> dict[str, object]:
    return schema_entity(
        found.schema, profile(), as_shown(found.schema), used=found.newest_version, schema_id_max=found.schema_id_max
    )
