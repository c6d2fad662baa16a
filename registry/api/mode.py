"""/mode: what may be done with all subjects, those of a context, or one."""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.answers import answer, query_flag
from headrace.registry.api.changes import note_change
from headrace.registry.api.payloads import ModePayload, ModeRequest, read_body
from headrace.registry.api.services import services
from headrace.registry.domain import Mode, parse_mode
from headrace.registry.errors import InvalidMode, InvalidSubject
from headrace.registry.names import scope_name
from headrace.registry.service.modes import FORWARD_ELSEWHERE

blueprint = Blueprint("mode", __name__)


@blueprint.get("/mode")
def get_global() -> Response:
    return _get(None)


@blueprint.put("/mode")
def put_global() -> Response:
    return _put(None)


@blueprint.delete("/mode")
def delete_global() -> Response:
    return _delete(None)


@blueprint.get("/mode/<subject:subject>")
def get_subject(subject: str) -> Response:
    return _get(scope_name(subject))


@blueprint.put("/mode/<subject:subject>")
def put_subject(subject: str) -> Response:
    return _put(subject)


@blueprint.delete("/mode/<subject:subject>")
def delete_subject(subject: str) -> Response:
    return _delete(scope_name(subject))


def _get(scope: str | None) -> Response:
    return _answer(services().modes.of_scope(scope, in_effect=query_flag("defaultToGlobal")))


def _put(subject: str | None) -> Response:
    wanted = read_body(ModePayload, ModeRequest)
    mode = None if wanted.mode is None else parse_mode(wanted.mode)
    scope = None if subject is None else _scope_for(mode, subject)
    if services().modes.change(scope, mode, force=query_flag("force")):
        what = {"scope": scope or "", "mode": None if mode is None else mode.value}
        note_change("mode_changed", **what, forced=query_flag("force"))
    # The request is echoed as it was written.
    return answer({} if wanted.mode is None else {"mode": wanted.mode})


def _scope_for(mode: Mode | None, subject: str) -> str | None:
    try:
        return scope_name(subject)
    except InvalidSubject:
        if mode is Mode.FORWARD:
            # It is for all subjects of all contexts, so that `:.__GLOBAL:name` is wrong for it whatever the name.
            raise InvalidMode(message=FORWARD_ELSEWHERE) from None
        raise


def _delete(scope: str | None) -> Response:
    removed = services().modes.reset(scope, recursive=query_flag("recursive"))
    if removed.was_set:
        note_change("mode_removed", scope=scope or "", recursive=query_flag("recursive"))
    return _answer(removed.mode)


def _answer(mode: Mode | None) -> Response:
    return answer({} if mode is None else {"mode": mode.value})
