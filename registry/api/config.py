"""/config: compatibility, normalization and what else is configured for all subjects, those of a context, or one.

In answers the level is `compatibilityLevel`, in changes and what they answer `compatibility`.
"""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.answers import answer, query_flag
from headrace.registry.api.changes import note_change, settings_given
from headrace.registry.api.entities import Profile, changed_config_entity, config_entity
from headrace.registry.api.payloads import ConfigPayload, read_body
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
    entry = services().configuration.of_scope(scope, in_effect=query_flag("defaultToGlobal"))
    return answer(config_entity(entry))


def _put(scope: str | None) -> Response:
    changed = services().configuration.change(scope, read_body(ConfigPayload, ConfigChange))
    if changed.is_new:
        note_change("configuration_changed", scope=scope or "", settings=settings_given(changed.asked))
    # Until releases 7.7.4 and 8.0 what was asked for was repeated.
    return answer(changed_config_entity(changed.asked.values if profile() is Profile.LEAN else changed.entry))


def _delete(scope: str | None) -> Response:
    removed = services().configuration.reset(scope)
    if removed.was_set:
        note_change("configuration_removed", scope=scope or "")
    return answer(config_entity(removed.entry))
