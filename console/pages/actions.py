"""Actions: the form that requests one, the page of one, and the audit log of all."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from typing import Final

from flask import Blueprint, abort, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from headrace.console.actions.kinds import (
    ACTION_KINDS,
    REASON_CHARS_MAX,
    ActionKind,
    InvalidArgument,
)
from headrace.console.actions.storage import ActionState, ConsoleAction, TooManyActions
from headrace.console.context import console, viewer
from headrace.console.formats import iso, plural
from headrace.console.tables import CellKind, PagedTable, TableColumn

blueprint = Blueprint("actions", __name__)

LISTED_MAX: Final = 5_000
ANONYMOUS: Final = "anonymous"
VIEWS: Final[Mapping[str, tuple[str, frozenset[ActionState]]]] = {
    "all": ("All", frozenset(ActionState)),
    "open": ("Open", frozenset(state for state in ActionState if state.is_open)),
    "bad": ("Failed or interrupted", frozenset({ActionState.FAILED, ActionState.INTERRUPTED})),
}


def _title(action: ConsoleAction) -> str:
    kind = ACTION_KINDS.get(action.kind)
    return action.kind if kind is None else kind.title


def _result(action: ConsoleAction) -> str:
    """Returns the change in words; "" if none is known."""
    kind = ACTION_KINDS.get(action.kind)
    if action.result is None or kind is None:
        return ""
    commit = f", commit {action.result.commit_number}" if action.result.commit_number else ""
    return f"{plural(action.result.count, kind.unit)}{commit}"


def _arguments(action: ConsoleAction) -> str:
    return ", ".join(f"{name} {value}" for name, value in action.arguments.items() if value)


ACTIONS: Final[PagedTable[ConsoleAction]] = PagedTable(
    "actions",
    (
        TableColumn(
            "id", "action", lambda one: one.id, CellKind.NUMBER, href=lambda one: url_for("actions.show", number=one.id)
        ),
        TableColumn("requested", "requested", lambda one: one.requested_ms, CellKind.TIME),
        TableColumn("requested_by", "by", lambda one: one.requested_by),
        TableColumn("what", "what", _title),
        TableColumn("about", "about", _arguments),
        TableColumn("state", "state", lambda one: one.state.value, CellKind.STATE),
        TableColumn("result", "result", _result),
        TableColumn("confirmed_by", "confirmed by", lambda one: one.confirmed_by or None),
        TableColumn("finished", "finished", lambda one: one.finished_ms, CellKind.TIME),
        TableColumn("error", "error", lambda one: one.error or None),
        TableColumn("reason", "why", lambda one: one.reason or None),
    ),
    lambda one: (
        _title(one),
        _arguments(one),
        one.state.value,
        one.requested_by,
        one.confirmed_by,
        one.reason,
        one.error,
    ),
    "There are no such actions.",
)


@blueprint.get("/actions")
def page() -> str | Response:
    context = console()
    found = context.sources.read("actions", lambda: context.actions.newest(LISTED_MAX))
    shown = request.args.get("show", "")
    shown = shown if shown in VIEWS else "all"
    rows = [one for one in found.value or () if one.state in VIEWS[shown][1]]
    view = ACTIONS.view(rows, context.now_ms(), extra={"show": shown} if shown != "all" else {})
    if (export := view.export(found)) is not None:
        return export
    return render_template(
        "actions.html",
        read=found,
        views={key: words for key, (words, _) in VIEWS.items()},
        shown=shown,
        table=view,
        is_cut=len(found.value or ()) == LISTED_MAX,
        listed_max=LISTED_MAX,
    )


@blueprint.get("/actions/new")
def new() -> tuple[str, int]:
    kind = _kind(request.args.get("action", ""))
    given = {one.name: request.args.get(one.name, "") for one in kind.arguments}
    return _request_form(kind, given, "", 200)


@blueprint.post("/actions")
def submit() -> tuple[str, int] | Response:
    kind = _kind(request.form.get("action", ""))
    given = {one.name: request.form.get(one.name, "") for one in kind.arguments}
    try:
        arguments = kind.arguments_of(given)
    except InvalidArgument as error:
        return _request_form(kind, given, str(error), 400)
    _check_permission(kind, arguments)
    try:
        action, is_new = console().actions.request(kind, arguments, _user(), console().now_ms())
    except TooManyActions as error:
        return _request_form(kind, given, str(error), 429)
    return redirect(url_for("actions.show", number=action.id, joined=None if is_new else 1), 303)


@blueprint.get("/actions/<int:number>")
def show(number: int) -> tuple[str, int] | Response:
    action = _action(number)
    if request.args.get("as") == "json":
        return Response(json.dumps(_document(action)), content_type="application/json")
    return _action_page(action, "", "", 200)


@blueprint.post("/actions/<int:number>/confirm")
def confirm(number: int) -> tuple[str, int] | Response:
    action = _action(number)
    kind = _kind(action.kind)
    _check_permission(kind, action.arguments)
    reason = " ".join(request.form.get("reason", "").split())
    problem = _problem(kind, action, reason, request.form.get("name", "").strip())
    if problem:
        return _action_page(action, problem, reason, 400)
    if not console().actions.confirm(number, _user(), reason, console().now_ms()):
        return _action_page(_action(number), "The action can no longer be confirmed.", reason, 409)
    return redirect(url_for("actions.show", number=number), 303)


@blueprint.post("/actions/<int:number>/cancel")
def cancel(number: int) -> tuple[str, int] | Response:
    action = _action(number)
    _check_permission(_kind(action.kind), action.arguments)
    if not console().actions.cancel(number, _user(), console().now_ms()):
        return _action_page(_action(number), "The action can no longer be cancelled.", "", 409)
    return redirect(url_for("actions.show", number=number), 303)


def _problem(kind: ActionKind, action: ConsoleAction, reason: str, name: str) -> str:
    """Returns why a form does not confirm the action; "" if it does."""
    if not reason:
        return "The reason is missing."
    if len(reason) > REASON_CHARS_MAX or not reason.isprintable():
        return f"The reason is longer than {REASON_CHARS_MAX:,} characters, or has characters that cannot be displayed."
    if kind.deletes and name != action.about:
        return f"The name does not match. Type {action.about} to confirm that the data is deleted."
    return ""


def _request_form(kind: ActionKind, given: Mapping[str, str], problem: str, status: int) -> tuple[str, int]:
    try:
        arguments = kind.arguments_of(given)
    except InvalidArgument as error:
        # The values of fields that the form shows can be corrected in it.
        if any(one.is_fixed for one in kind.arguments if not _is_valid(kind, one.name, given)):
            abort(400, str(error))
        arguments = dict(given)
    _check_permission(kind, arguments)
    return render_template("action_new.html", kind=kind, given=given, problem=problem), status


def _is_valid(kind: ActionKind, name: str, given: Mapping[str, str]) -> bool:
    (argument,) = (one for one in kind.arguments if one.name == name)
    try:
        argument.check(given[name].strip())
    except InvalidArgument:
        return False
    return True


def _action_page(action: ConsoleAction, problem: str, reason: str, status: int) -> tuple[str, int]:
    kind = ACTION_KINDS.get(action.kind)
    command = ""
    if kind is not None and action.confirmed_ms is not None and action.dry_run is not None:
        words = kind.real_command(action.arguments, action.reason, action.confirmed_by, action.dry_run.count)
        command = shlex.join(["headrace", *words])
    page = render_template(
        "action.html",
        action=action,
        title=_title(action),
        kind=kind,
        may_act=kind is not None and kind.permits(viewer(), action.arguments),
        command_text=command,
        undo=kind.undo_command(action.arguments) if kind is not None else "",
        problem=problem,
        reason=reason,
        reason_chars_max=REASON_CHARS_MAX,
        states=ActionState,
        is_joined=bool(request.args.get("joined")),
    )
    return page, status


def _document(action: ConsoleAction) -> dict[str, object]:
    """Returns an action for programs, with times in UTC."""
    values = dataclasses.asdict(action)
    times = {name: None if values[name] is None else iso(values[name]) for name in values if name.endswith("_ms")}
    hidden = {*times, "worker", "alive_ms"}
    return {
        **{name: value for name, value in values.items() if name not in hidden},
        **{name.removesuffix("_ms"): value for name, value in times.items() if name != "alive_ms"},
    }


def _kind(name: str) -> ActionKind:
    return ACTION_KINDS.get(name) or abort(404, "There is no such action.")


def _action(number: int) -> ConsoleAction:
    found = console().actions.find(number) if number < 2**63 else None
    return found or abort(404, "There is no action with this number. Old ones are deleted.")


def _check_permission(kind: ActionKind, arguments: Mapping[str, str]) -> None:
    if not kind.permits(viewer(), arguments):
        abort(403, "Actions need the permission admin on the topic, and silences admin on all subjects.")


def _user() -> str:
    return viewer().name or ANONYMOUS
