"""/config: compatibility level and normalization, of all subjects or of one.

In answers the level is `compatibilityLevel`, in requests and their echo `compatibility`.
"""

from __future__ import annotations

from flask import Blueprint, Response

from registry.api.answers import answer, query_flag
from registry.api.entities import config_echo, config_entity
from registry.api.payloads import ConfigPayload, read_body
from registry.api.services import services
from registry.domain import ConfigChange, ConfigEntry, subject_name

blueprint = Blueprint("config", __name__)


@blueprint.get("/config")
def get_global() -> Response:
    return _answer(services().configuration.of_all())


@blueprint.put("/config")
def put_global() -> Response:
    return _echo(services().configuration.change(None, read_body(ConfigPayload, ConfigChange)))


@blueprint.delete("/config")
def delete_global() -> Response:
    return _answer(services().configuration.reset(None))


@blueprint.get("/config/<subject:subject>")
def get_subject(subject: str) -> Response:
    entry = services().configuration.of_subject(subject_name(subject), or_global=query_flag("defaultToGlobal"))
    return _answer(entry)


@blueprint.put("/config/<subject:subject>")
def put_subject(subject: str) -> Response:
    return _echo(services().configuration.change(subject_name(subject), read_body(ConfigPayload, ConfigChange)))


@blueprint.delete("/config/<subject:subject>")
def delete_subject(subject: str) -> Response:
    return _answer(services().configuration.reset(subject_name(subject)))


def _answer(entry: ConfigEntry) -> Response:
    return answer(config_entity(entry))


def _echo(change: ConfigChange) -> Response:
    return answer(config_echo(change))
