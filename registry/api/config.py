"""/config: reads, changes and removes the configuration of a subject, of a context or of all contexts.

It includes the compatibility level. Responses to GET and DELETE have the level as `compatibilityLevel`; PUT requests
and their responses have it as `compatibility`.
"""

from __future__ import annotations

from dataclasses import asdict

from flask import Blueprint, Response

from headrace.registry.api.changes import logged_settings, record_change
from headrace.registry.api.entities import Profile, changed_config_entity, config_entity
from headrace.registry.api.payloads import ConfigPayload, read_body
from headrace.registry.api.responses import json_response, query_flag
from headrace.registry.api.services import profile, services
from headrace.registry.domain import ConfigChange
from headrace.registry.names import scope_name

blueprint = Blueprint("config", __name__)


@blueprint.get("/config")
def get_global() -> Response:
    return _get(None)


@blueprint.put("/config")
def put_global() -> Response:
    return _put(None)


@blueprint.delete("/config")
def delete_global() -> Response:
    return _delete(None)


@blueprint.get("/config/<subject:subject>")
def get_subject(subject: str) -> Response:
    return _get(scope_name(subject))


@blueprint.put("/config/<subject:subject>")
def put_subject(subject: str) -> Response:
    return _put(scope_name(subject))


@blueprint.delete("/config/<subject:subject>")
def delete_subject(subject: str) -> Response:
    return _delete(scope_name(subject))


def _get(scope: str | None) -> Response:
    entry = services().configuration.read_scope(scope, in_effect=query_flag("defaultToGlobal"))
    return json_response(config_entity(entry))


def _put(scope: str | None) -> Response:
    changed = services().configuration.change(scope, read_body(ConfigPayload, ConfigChange))
    if changed.is_new:
        keys = changed.change.changed_keys
        values = {"before": logged_settings(changed.before, keys), "after": logged_settings(changed.entry, keys)}
        record_change("configuration_changed", scope, **values)
        # Confluent's releases before 7.7.4 and 8.0 return only the keys of the request.
    return json_response(changed_config_entity(changed.change.values if profile() is Profile.LEAN else changed.entry))


def _delete(scope: str | None) -> Response:
    removed = services().configuration.reset(scope)
    if removed.was_set:
        keys = [key for key, value in asdict(removed.entry).items() if value is not None]
        record_change("configuration_removed", scope, before=logged_settings(removed.entry, keys))
    return json_response(config_entity(removed.entry))
