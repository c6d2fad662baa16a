"""/subjects: registers, looks up, lists and deletes versions."""

from __future__ import annotations

from flask import Blueprint, Response, request

from headrace.registry.api.changes import record_change
from headrace.registry.api.entities import registered_entity, version_entity
from headrace.registry.api.hooks import OFFLOAD_KEY
from headrace.registry.api.payloads import SchemaPayload, TagChangePayload, read_body
from headrace.registry.api.responses import bytes_response, json_response, paginate, query_flag
from headrace.registry.api.services import as_shown, profile, services, shown_text
from headrace.registry.domain import SchemaRequest, TagChange, parse_version
from headrace.registry.names import EVERY_CONTEXT_PREFIX, SubjectFilter, subject_name
from headrace.registry.service.compatibility import ComparisonOffload
from headrace.registry.service.registration import RegistrationResult

blueprint = Blueprint("subjects", __name__)


@blueprint.get("/subjects")
def list_subjects() -> Response:
    # confluent-kafka's Python client calls the parameters `subject` and `deleted_only`.
    prefix = request.args.get("subjectPrefix", request.args.get("subject", EVERY_CONTEXT_PREFIX))
    subject_filter = SubjectFilter.of(prefix)
    deleted_only = query_flag("deletedOnly", "deleted_only")
    found = services().lookup.subjects(subject_filter, deleted=query_flag("deleted"), deleted_only=deleted_only)
    return json_response(paginate(found))


@blueprint.post("/subjects/<subject:subject>")
def look_up(subject: str) -> Response:
    schema = read_body(SchemaPayload, SchemaRequest)
    found = services().lookup.find_version(
        subject_name(subject), schema, normalize=query_flag("normalize"), deleted=query_flag("deleted")
    )
    return json_response(version_entity(found, profile(), as_shown(found.schema)))


@blueprint.delete("/subjects/<subject:subject>")
def delete_subject(subject: str) -> Response:
    permanent = query_flag("permanent")
    deleted = services().deletion.delete_subject(subject_name(subject), permanent=permanent)
    ids = list(deleted.schema_ids.values())
    record_change("subject_deleted", deleted.subject, versions=deleted.numbers, schema_ids=ids, permanent=permanent)
    return json_response(deleted.numbers)


@blueprint.get("/subjects/<subject:subject>/versions")
def list_versions(subject: str) -> Response:
    deleted_only = query_flag("deletedOnly", "deleted_only")
    found = services().lookup.versions(
        subject_name(subject),
        deleted=query_flag("deleted"),
        deleted_only=deleted_only,
        deleted_as_negative=query_flag("deletedAsNegative"),
    )
    return json_response(paginate(found))


@blueprint.post("/subjects/<subject:subject>/versions")
def register(subject: str) -> Response:
    schema = read_body(SchemaPayload, SchemaRequest)
    force = query_flag("force")
    registration = services().registration.register(
        subject_name(subject), schema, normalize=query_flag("normalize"), force=force, offload=_offload()
    )
    _record_registration(registration, forced=force)
    stored = registration.stored
    return json_response(registered_entity(stored, profile(), as_shown(stored.schema)))


@blueprint.get("/subjects/<subject:subject>/versions/<segment:version>")
def get_version(subject: str, version: str) -> Response:
    found = services().lookup.version(subject_name(subject), parse_version(version), deleted=query_flag("deleted"))
    return json_response(version_entity(found, profile(), as_shown(found.schema)))


@blueprint.get("/subjects/<subject:subject>/versions/<segment:version>/schema")
def get_version_text(subject: str, version: str) -> Response:
    found = services().lookup.version(subject_name(subject), parse_version(version), deleted=query_flag("deleted"))
    return bytes_response(shown_text(found.schema).encode())


@blueprint.post("/subjects/<subject:subject>/versions/<segment:version>/tags")
def change_tags(subject: str, version: str) -> Response:
    change = read_body(TagChangePayload, TagChange)
    registration = services().tagging.change(subject_name(subject), parse_version(version), change, offload=_offload())
    _record_registration(registration, forced=False)
    stored = registration.stored
    return json_response(registered_entity(stored, profile(), as_shown(stored.schema)))


@blueprint.get("/subjects/<subject:subject>/metadata")
def get_latest_with_metadata(subject: str) -> Response:
    keys, values = request.args.getlist("key"), request.args.getlist("value")
    # A key without a value is ignored.
    properties = dict(zip(keys, values, strict=False))
    found = services().lookup.latest_with_metadata(subject_name(subject), properties, deleted=query_flag("deleted"))
    return json_response(version_entity(found, profile(), as_shown(found.schema)))


@blueprint.get("/subjects/<subject:subject>/versions/<segment:version>/referencedby")
def list_referencing(subject: str, version: str) -> Response:
    found = services().lookup.referencing_ids(
        subject_name(subject), parse_version(version), deleted=query_flag("deleted")
    )
    return json_response(paginate(found))


@blueprint.delete("/subjects/<subject:subject>/versions/<segment:version>")
def delete_version(subject: str, version: str) -> Response:
    permanent = query_flag("permanent")
    deleted = services().deletion.delete_version(subject_name(subject), parse_version(version), permanent=permanent)
    ((number, schema_id),) = deleted.schema_ids.items()
    record_change("version_deleted", deleted.subject, version=number, schema_id=schema_id, permanent=permanent)
    return json_response(number)


def _offload() -> ComparisonOffload | None:
    found: ComparisonOffload | None = request.environ.get(OFFLOAD_KEY)
    return found


def _record_registration(registration: RegistrationResult, *, forced: bool) -> None:
    if registration.is_new:
        stored = registration.stored
        details = {"version": stored.version, "schema_id": stored.schema.schema_id, "forced": forced}
        record_change("version_registered", stored.subject, **details)
