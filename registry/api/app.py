"""The registry as a WSGI application.

A subject may contain almost any character, including a percent-encoded `/`. WSGI servers decode the path before they
call the application. Therefore `_RawPath` routes by the undecoded path, and the subject is decoded after routing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlencode

from flask import Flask, Response, g, request
from werkzeug.routing import BaseConverter, ValidationError

from headrace.compat.levels import CompatibilityLevel
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.api import (
    access,
    changes,
    compatibility,
    config,
    contexts,
    health,
    metrics,
    mode,
    problems,
    replication,
    schemas,
    subjects,
)
from headrace.registry.api.entities import Profile
from headrace.registry.api.openapi import document as openapi
from headrace.registry.api.responses import content_type, error_response
from headrace.registry.api.services import Services
from headrace.registry.api.wsgi_call import CACHEABLE_KEY, ROUTE_KEY
from headrace.registry.errors import InvalidSubject
from headrace.registry.names import DEFAULT_CONTEXT, EVERY_CONTEXT_PREFIX, context_name, qualified
from headrace.registry.operation.audit_log import AuditLog
from headrace.registry.operation.metrics import RegistryMetricsPage, new_counts
from headrace.registry.operation.shared_counts import SharedCounts
from headrace.registry.storage.database import Database

REQUEST_BYTES_MAX = 4 * 1024 * 1024
CACHEABLE_BLUEPRINTS = frozenset({"subjects", "schemas", "compatibility", "config", "mode"})
"""Blueprints with cacheable responses, which depend only on the request, the database and the settings."""

OWN_TYPE_BLUEPRINTS = frozenset({"metrics", "openapi"})
"""Blueprints with other content types than the API's."""


def create_app(
    database: Database,
    *,
    default_level: str = "BACKWARD",
    request_bytes_max: int = REQUEST_BYTES_MAX,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    version: str = "unknown",
    commit: str = "",
    profile: int = Profile.FULL,
    stores_rules: bool = True,
    mutable_modes: bool = True,
    users: RegistryUsersFile | None = None,
    counts: SharedCounts | None = None,
    audit_log: AuditLog | None = None,
) -> Flask:
    """Creates the application. The database tables must be up to date.

    Args:
        database: not shared with another application in this process.
        default_level: the compatibility level where none is configured.
        request_bytes_max: larger request bodies are rejected.
        now_ms: the clock, in milliseconds since 1970.
        version: the version that the registry reports.
        commit: the git commit that it reports; "" if it is not known.
        profile: the release of the Confluent Schema Registry to imitate in response bodies, error codes and modes: 7
            or 8.
        stores_rules: whether rule sets in requests are stored. The community edition drops them.
        mutable_modes: whether clients may change modes.
        users: authenticates clients; None gives every client all permissions.
        counts: the request counts of all worker processes, for /metrics.
        audit_log: receives every change that a request makes.
    """
    app = Flask("headrace.registry.api", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = request_bytes_max
    # Flask limits forms separately; the limit of the request suffices.
    app.config["MAX_FORM_MEMORY_SIZE"] = request_bytes_max
    app.wsgi_app = _RawPath(app.wsgi_app)  # type: ignore[method-assign]  # Flask's documented way to wrap itself
    app.url_map.merge_slashes = False
    app.url_map.converters["segment"] = SegmentConverter
    app.url_map.converters["subject"] = SubjectConverter
    app.url_map.converters["number"] = NumberConverter
    app.extensions["registry"] = Services.of(
        database,
        CompatibilityLevel(default_level),
        now_ms,
        version,
        commit,
        Profile(profile),
        stores_rules,
        mutable_modes,
    )
    problems.install(app)
    if users is not None:
        access.install(app, users)
    if audit_log is not None:
        changes.install(app, audit_log)
    lost_lines = None if audit_log is None else audit_log.lost_lines
    page = RegistryMetricsPage(new_counts(1) if counts is None else counts, version, lost_lines)
    app.extensions[metrics.EXTENSION] = page
    for module in (health, metrics, openapi, contexts, subjects, schemas, compatibility, config, mode, replication):
        app.register_blueprint(module.blueprint)
    app.before_request(_reject_unacceptable)
    app.after_request(_set_front_keys)
    return app


def _reject_unacceptable() -> Response | None:
    if request.url_rule is not None and request.blueprint not in OWN_TYPE_BLUEPRINTS and content_type() is None:
        return error_response(406, 406, "HTTP 406 Not Acceptable")
    return None


def _set_front_keys(response: Response) -> Response:
    request.environ[ROUTE_KEY] = "" if request.url_rule is None else request.url_rule.rule
    request.environ[CACHEABLE_KEY] = request.blueprint in CACHEABLE_BLUEPRINTS and not g.get("is_uncacheable")
    return response


class SegmentConverter(BaseConverter):
    """URL converter for a path segment, which is percent-decoded after routing."""

    regex = "[^/]+"

    def to_python(self, value: str) -> str:
        return unquote(value, errors="replace")


class SubjectConverter(SegmentConverter):
    """URL converter for a subject, which is percent-decoded after routing. It may be empty, because the empty text is a
    valid subject."""

    regex = "[^/]*"


class NumberConverter(BaseConverter):
    """URL converter for a 32-bit number. Other segments give 404."""

    regex = "[^/]+"

    def to_python(self, value: str) -> int:
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 10) or not -(2**31) <= int(value) < 2**31:
            raise ValidationError
        return int(value)


class _RawPath:
    """Middleware that sets `PATH_INFO` to the undecoded path, so that Flask routes by it: a subject may contain `/`,
    encoded as `%2F`."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        raw = environ.get("RAW_URI", environ.get("REQUEST_URI"))
        if raw is not None:
            path, _, query = raw.partition("?")
            if "://" in path and not path.startswith("/"):
                # The absolute form of a request target, which proxies send.
                path = "/" + path.split("://", 1)[1].partition("/")[2]
            # The Java client and deployment tools send a trailing slash.
            path, environ["QUERY_STRING"] = without_context_prefix(path.removesuffix("/") or "/", query)
            environ["PATH_INFO"] = path
        return self._application(environ, start_response)


SETTINGS_PATHS = ("config", "mode")
PREFIX_PARAMETERS = ("subjectPrefix", "subject")
"""Query parameters with a subject prefix, in requests that list subjects or schemas."""


def without_context_prefix(path: str, query: str) -> tuple[str, str]:
    """Rewrites a request below `/contexts/{context}` to one with qualified subjects. Returns the new (path, query).

    `/contexts/.c/subjects/a` becomes `/subjects/:.c:a`. Paths and queries are percent-encoded, before and after. Other
    paths stay unchanged, as do paths with an invalid context name, which give an error later.
    """
    parts = path.split("/")
    # ["", "contexts", context, rest…]
    if len(parts) < 4 or parts[1] != "contexts" or parts[0]:
        return path, query
    try:
        context = context_name(unquote(parts[2], errors="replace"))
    except InvalidSubject:
        return path, query
    return _qualified_request(context, parts[3:], query)


def _qualified_request(context: str, parts: list[str], query: str) -> tuple[str, str]:
    kind = parts[0]
    if kind in SETTINGS_PATHS:
        has_subject = len(parts) > 1 and bool(parts[1])
        if not has_subject and context == DEFAULT_CONTEXT:
            return f"/{kind}", query
        scope = _qualified(context, parts[1]) if has_subject else quote(qualified(context, ""), safe="")
        return "/" + "/".join([kind, scope, *parts[2:]]), query
    if "subjects" in parts[:-1]:
        index = parts.index("subjects") + 1
        return "/" + "/".join([*parts[:index], _qualified(context, parts[index]), *parts[index + 1 :]]), query
    if kind == "schemas" and parts[1:2] == ["ids"]:
        query = _with_subject(context, query, "subject", ("subject",))
    elif parts in (["subjects"], ["schemas"]):
        query = _with_subject(context, query, "subjectPrefix", PREFIX_PARAMETERS)
    return "/" + "/".join(parts), query


def _qualified(context: str, segment: str) -> str:
    name = unquote(segment, errors="replace")
    return segment if _names_context(name) else quote(qualified(context, ""), safe="") + segment


def _with_subject(context: str, query: str, name: str, names: tuple[str, ...]) -> str:
    """Adds a context to the subject (or subject prefix) in a query, unless that names a context. Returns the query.

    Args:
        context: the context to add.
        query: the query of the request, percent-encoded.
        name: the name of the parameter in the result. If the query has no subject, the value is the context alone.
        names: the accepted names of the parameter; the first one that the query has is used, all are replaced.
    """
    pairs = parse_qsl(query, keep_blank_values=True)
    subject = next((value for accepted in names for key, value in pairs if key == accepted), "")
    if not _names_context(subject):
        subject = qualified(context, subject)
    return urlencode([(name, subject), *((key, value) for key, value in pairs if key not in names)])


def _names_context(text: str) -> bool:
    return text.startswith((":.", EVERY_CONTEXT_PREFIX))
