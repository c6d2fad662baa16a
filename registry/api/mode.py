"""/mode: reads, sets and removes the mode of a subject, of a context or of all contexts."""

from __future__ import annotations

from flask import Blueprint, Response

from headrace.registry.api.changes import record_change
from headrace.registry.api.payloads import ModePayload, ModeRequest, read_body
from headrace.registry.api.responses import json_response, query_flag
from headrace.registry.api.services import services
from headrace.registry.domain import Mode, parse_mode
from headrace.registry.errors import InvalidMode, InvalidSubject
from headrace.registry.names import scope_name
from headrace.registry.service.modes import FORWARD_GLOBAL_ONLY

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
    return _response(services().modes.read_scope(scope, in_effect=query_flag("defaultToGlobal")))


def _put(subject: str | None) -> Response:
    body = read_body(ModePayload, ModeRequest)
    mode = None if body.mode is None else parse_mode(body.mode)
    scope = None if subject is None else _scope_for(mode, subject)
    changed = services().modes.change(scope, mode, force=query_flag("force"))
    if changed.is_new:
        modes = {"before": _logged(changed.before), "after": _logged(mode)}
        record_change("mode_changed", scope, **modes, forced=query_flag("force"), versions_removed=changed.purged)
    # The response repeats the mode in the client's spelling.
    return json_response({} if body.mode is None else {"mode": body.mode})


def _scope_for(mode: Mode | None, subject: str) -> str | None:
    try:
        return scope_name(subject)
    except InvalidSubject:
        if mode is Mode.FORWARD:
            # FORWARD is global only, so the error is about the mode even if the subject is invalid too.
            raise InvalidMode(message=FORWARD_GLOBAL_ONLY) from None
        raise


def _delete(scope: str | None) -> Response:
    removed = services().modes.reset(scope, recursive=query_flag("recursive"))
    if removed.was_set:
        record_change("mode_removed", scope, before=_logged(removed.mode), recursive=query_flag("recursive"))
    return _response(removed.mode)


def _logged(mode: Mode | None) -> str | None:
    return None if mode is None else mode.value


def _response(mode: Mode | None) -> Response:
    return json_response({} if mode is None else {"mode": mode.value})
