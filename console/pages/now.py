"""The first page: is anything lost, late or doubled?"""

from __future__ import annotations

from flask import Blueprint, render_template

from headrace.console.context import console
from headrace.console.sources import LIMIT_S, Reading
from headrace.pipeline.status.collect import platform_status
from headrace.pipeline.status.finding import PlatformStatus

blueprint = Blueprint("now", __name__)

STATUS_AGE_S = 15.0


def read_status(limit_s: float = LIMIT_S) -> Reading[PlatformStatus]:
    """Returns the findings of all sources of `headrace status`, at most `STATUS_AGE_S` old if that is possible.

    Args:
        limit_s: the longest wait.
    """
    settings = console().settings
    return console().sources.read("status", lambda: platform_status(settings), max_age_s=STATUS_AGE_S, limit_s=limit_s)


@blueprint.get("/")
def page() -> str:
    return render_template("now.html", status=read_status())
