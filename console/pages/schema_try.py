"""A form that checks a new schema against a subject, as a registration would. It stores nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, Response, make_response, render_template, request

from headrace.avro_schema import AvroSchemaError, parse_schema
from headrace.console.context import console
from headrace.console.pages.subject import hidden_subjects, read_configuration, read_history, requested_subject
from headrace.console.registry_reader import SCHEMA_CHARS_MAX, SubjectHistory, subjects_of
from headrace.console.schema_changes import FINDINGS_MAX, CandidateCheck, ChangesUnknown, check_candidate, is_required
from headrace.console.security import NO_STORE
from headrace.console.sources import Reading

blueprint = Blueprint("schema_try", __name__)

FIELD: Final = "schema"


@dataclass(frozen=True, slots=True)
class TriedSchema:
    """The result of a check. `problem` states why the text is no schema; `note` is a violation of the Avro
    specification that registries may accept. `registry_accepts` and `registry_messages` are the registry's own
    verdict."""

    problem: str
    note: str
    check: CandidateCheck | None
    registry_accepts: bool = False
    registry_messages: tuple[str, ...] = ()


@blueprint.get("/schemas/try")
def page() -> Response:
    return _page("", None)


@blueprint.post("/schemas/try")
def submit() -> Response:
    name, text = requested_subject(), request.form.get(FIELD, "").strip()
    history, configuration = read_history(name), read_configuration(name)
    now_ms = console().now_ms()
    if history.value is None:
        return _page(text, Reading(None, history.reason, now_ms))
    if configuration.value is None:
        return _page(text, Reading(None, f"the level is not known: {configuration.reason}", now_ms))
    found, level = history.value, configuration.value.level
    reason = hidden_subjects(subjects_of(found.versions))
    if not text:
        return _page(text, Reading(TriedSchema("the text is empty", "", None), "", now_ms))
    if len(text) > SCHEMA_CHARS_MAX:
        problem = f"the text has {len(text):,} characters; the limit is {SCHEMA_CHARS_MAX:,}"
        return _page(text[:SCHEMA_CHARS_MAX], Reading(TriedSchema(problem, "", None), "", now_ms))
    if reason:
        return _page(text, Reading(None, reason, now_ms))
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    reading = console().sources.read(f"try {level} {digest} {name}", _tried(name, text, found, level))
    return _page(text, reading)


def _page(text: str, tried: Reading[TriedSchema] | None) -> Response:
    name = requested_subject()
    history = read_history(name)
    rendered = render_template(
        "schema_try.html",
        subject=name,
        text=text,
        tried=tried,
        history=history,
        configuration=read_configuration(name),
        is_required=is_required,
        characters_max=SCHEMA_CHARS_MAX,
    )
    response = make_response(rendered)
    response.headers["Cache-Control"] = NO_STORE
    return response


def _tried(name: str, text: str, history: SubjectHistory, level: str) -> Callable[[], TriedSchema]:
    registry = console().registry

    def check() -> TriedSchema:
        newest = history.newest
        referenced = registry.referenced(name, newest.references)
        try:
            candidate = parse_schema(text, references=referenced, strict=False, lenient_json=True)
        except AvroSchemaError as error:
            return TriedSchema(str(error), "", None)
        try:
            parse_schema(text, references=referenced, lenient_json=True)
            note = ""
        except AvroSchemaError as error:
            note = str(error)
        if newest.schema is None:
            raise ChangesUnknown(f"version {newest.version} cannot be read: {newest.problem}")
        versions = [(one.version, one.schema) for one in history.versions if one.schema is not None]
        result = check_candidate(candidate, versions, level)
        accepts, messages = registry.check(name, text, newest.references)
        return TriedSchema("", note, result, accepts, tuple(messages[:FINDINGS_MAX]))

    return check
