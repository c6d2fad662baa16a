"""The registry as a WSGI application.

Subjects may hold any character, a percent-encoded `/` among them. WSGI servers decode the path before the
application sees it, so `_RawPath` routes by the path as the client sent it and the subject is decoded after routing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from flask import Flask, Response, g, request
from werkzeug.routing import BaseConverter, ValidationError

from headrace.compat.levels import CompatibilityLevel
from headrace.registry.access.authenticator import UsersFile
from headrace.registry.api import (
    access,
    changes,
    compatibility,
    config,
    contexts,
    following,
    health,
    metrics,
    mode,
    problems,
    schemas,
    subjects,
)
from headrace.registry.api.answers import content_type, problem
from headrace.registry.api.entities import Profile
from headrace.registry.api.openapi import views as openapi
from headrace.registry.api.services import Services
from headrace.registry.api.wsgi_call import KEEP_KEY, ROUTE_KEY
from headrace.registry.errors import InvalidSubject
from headrace.registry.names import DEFAULT_CONTEXT, EVERY_CONTEXT_PREFIX, context_name, qualified
from headrace.registry.operation.audit_log import AuditLog
from headrace.registry.operation.metrics import MetricsPage, new_counts
from headrace.registry.operation.shared_counts import SharedCounts
from headrace.registry.storage.database import Database

REQUEST_BYTES_MAX = 4 * 1024 * 1024
KEPT_BLUEPRINTS = frozenset({"subjects", "schemas", "compatibility", "config", "mode"})
"""Whose answers may be given again while what they rest on has not changed; the others speak of the process."""

OWN_TYPE_BLUEPRINTS = frozenset({"metrics", "openapi"})
"""Whose answers are not of the API's content types."""


def create_app(
    database: Database,
    *,
    default_level: str = "BACKWARD",
    request_bytes_max: int = REQUEST_BYTES_MAX,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    version: str = "unknown",
    profile: int = Profile.FULL,
    keeps_rules: bool = True,
    mutable_modes: bool = True,
    users: UsersFile | None = None,
    counts: SharedCounts | None = None,
    audit_log: AuditLog | None = None,
) -> Flask:
    """The application on a database whose tables are up to date.

    Args:
        database: used by this application alone in this process.
        default_level: compatibility level where none is configured.
        request_bytes_max: larger request bodies are refused unread.
        now_ms: the clock, in milliseconds since 1970.
        version: what the registry says of its own version.
        profile: release of the Confluent Schema Registry whose bodies are answered, 7 or 8.
        keeps_rules: whether rule sets in requests are stored, or dropped as by the community edition.
        mutable_modes: whether clients may change modes.
        users: who may do what; None lets everybody do everything.
        counts: what the processes of the server count in.
        audit_log: gets every change.
    """
    app = Flask("headrace.registry.api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = request_bytes_max
    # A form's size is bounded by the request's.
    app.config["MAX_FORM_MEMORY_SIZE"] = request_bytes_max
    app.wsgi_app = _RawPath(app.wsgi_app)  # type: ignore[method-assign]  # Flask's documented way to wrap itself
    app.url_map.merge_slashes = False
    app.url_map.converters["segment"] = SegmentConverter
    app.url_map.converters["subject"] = SubjectConverter
    app.url_map.converters["number"] = NumberConverter
    app.extensions["registry"] = Services.of(
        database, CompatibilityLevel(default_level), now_ms, version, Profile(profile), keeps_rules, mutable_modes
    )
    problems.install(app)
    if users is not None:
        access.install(app, users)
    if audit_log is not None:
        changes.install(app, audit_log)
    app.extensions[metrics.EXTENSION] = MetricsPage(new_counts(1) if counts is None else counts, version)
    for module in (health, metrics, openapi, contexts, subjects, schemas, compatibility, config, mode, following):
        app.register_blueprint(module.blueprint)
    app.before_request(_refuse_unacceptable)
    app.after_request(_tell_front)
    return app


def _refuse_unacceptable() -> Response | None:
    if request.url_rule is not None and request.blueprint not in OWN_TYPE_BLUEPRINTS and content_type() is None:
        return problem(406, 406, "HTTP 406 Not Acceptable")
    return None


def _tell_front(response: Response) -> Response:
    request.environ[ROUTE_KEY] = "" if request.url_rule is None else request.url_rule.rule
    request.environ[KEEP_KEY] = request.blueprint in KEPT_BLUEPRINTS and not g.get("is_passing")
    return response


class SegmentConverter(BaseConverter):
    """A percent-encoded path segment."""

    regex = "[^/]+"

    def to_python(self, value: str) -> str:
        return unquote(value, errors="replace")


class SubjectConverter(SegmentConverter):
    """A segment that may be empty, since that is a legal subject."""

    regex = "[^/]*"


class NumberConverter(BaseConverter):
    """A 32-bit number; anything else is a path that does not exist."""

    regex = "[^/]+"

    def to_python(self, value: str) -> int:
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10) or not -(2**31) <= int(value) < 2**31:
            raise ValidationError
        return int(value)


class _RawPath:
    """Gives the application the path before percent-decoding, as `PATH_INFO`."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        raw = environ.get("RAW_URI", environ.get("REQUEST_URI"))
        if raw is not None:
            path, _, query = raw.partition("?")
            if "://" in path and not path.startswith("/"):
                # The absolute form of a request target, which proxies send.
                path = "/" + path.split("://", 1)[1].partition("/")[2]
            # A trailing slash says nothing here: the Java client and deployment tools send one.
            path, environ["QUERY_STRING"] = in_context(path.removesuffix("/") or "/", query)
            environ["PATH_INFO"] = path
        return self._application(environ, start_response)


SETTINGS_PATHS = ("config", "mode")
PREFIX_PARAMETERS = ("subjectPrefix", "subject")
"""Of lists of subjects and schemas, by which clients name the beginning of a subject."""


def in_context(path: str, query: str) -> tuple[str, str]:
    """The path and query of the call without `/contexts/{context}` in front; others are returned as they are.

    Such a call is the same as one whose subject is qualified: `/contexts/.c/subjects/a` is `/subjects/:.c:a`. Paths and
    queries come and go as they are on the wire, percent-encoded.

    A context's name that no context can have leaves the path as it is too: there is nothing at it.
    """
    parts = path.split("/")
    # "", "contexts", the context, and what is asked of it
    if len(parts) < 4 or parts[1] != "contexts" or parts[0]:
        return path, query
    try:
        context = context_name(unquote(parts[2], errors="replace"))
    except InvalidSubject:
        return path, query
    return _in_context(context, parts[3:], query)


def _in_context(context: str, parts: list[str], query: str) -> tuple[str, str]:
    kind = parts[0]
    if kind in SETTINGS_PATHS:
        named = len(parts) > 1 and bool(parts[1])
        if not named and context == DEFAULT_CONTEXT:
            return f"/{kind}", query
        scope = _qualified(context, parts[1]) if named else quote(qualified(context, ""), safe="")
        return "/" + "/".join([kind, scope, *parts[2:]]), query
    if "subjects" in parts[:-1]:
        place = parts.index("subjects") + 1
        return "/" + "/".join([*parts[:place], _qualified(context, parts[place]), *parts[place + 1 :]]), query
    if kind == "schemas" and parts[1:2] == ["ids"]:
        query = _with_subject(context, query, "subject", ("subject",))
    elif parts in (["subjects"], ["schemas"]):
        query = _with_subject(context, query, "subjectPrefix", PREFIX_PARAMETERS)
    return "/" + "/".join(parts), query


def _qualified(context: str, segment: str) -> str:
    name = unquote(segment, errors="replace")
    return segment if _names_context(name) else quote(qualified(context, ""), safe="") + segment


def _with_subject(context: str, query: str, name: str, names: tuple[str, ...]) -> str:
    """The query with the first parameter of these names qualified, or one called `name` that is only the context."""
    pairs = parse_qsl(query, keep_blank_values=True)
    found = next((value for wanted in names for key, value in pairs if key == wanted), "")
    if not _names_context(found):
        found = qualified(context, found)
    return urlencode([(name, found), *((key, value) for key, value in pairs if key not in names)])


def _names_context(text: str) -> bool:
    return text.startswith((":.", EVERY_CONTEXT_PREFIX))
