"""The first page: is anything lost, late or doubled?"""

from __future__ import annotations

from flask import Blueprint, render_template

from headrace.console.context import console
from headrace.console.sources import Reading
from headrace.pipeline.status.collect import platform_status
from headrace.pipeline.status.finding import PlatformStatus

blueprint = Blueprint("now", __name__)

STATUS_AGE_S = 15.0


def read_status() -> Reading[PlatformStatus]:
    """Returns the findings of all sources of `headrace status`, at most `STATUS_AGE_S` old if that is possible."""
    settings = console().settings
    return console().sources.read("status", lambda: platform_status(settings), max_age_s=STATUS_AGE_S)


@blueprint.get("/")
def page() -> str:
    return render_template("now.html", status=read_status())
