"""/mode and /contexts, which have one answer each: every subject may be read and written, in one context."""

from __future__ import annotations

from flask import Blueprint, Response

from registry.api.answers import answer, query_flag
from registry.domain import subject_name
from registry.errors import SubjectModeNotConfigured

blueprint = Blueprint("mode", __name__)

MODE = "READWRITE"


@blueprint.get("/mode")
def get_global() -> Response:
    return answer({"mode": MODE})


@blueprint.get("/mode/<subject:subject>")
def get_subject(subject: str) -> Response:
    name = subject_name(subject)
    if not query_flag("defaultToGlobal"):
        raise SubjectModeNotConfigured(subject=name)
    return answer({"mode": MODE})


@blueprint.get("/contexts")
def list_contexts() -> Response:
    return answer(["."])
