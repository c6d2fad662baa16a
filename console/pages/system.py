"""The installation: versions, whether all parts respond, and the source of each setting."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, abort, render_template, request
from werkzeug.wrappers import Response

from headrace.console.caching import unchanged
from headrace.console.context import console, viewer
from headrace.console.tables import CellKind, PagedTable, TableColumn
from headrace.pipeline.status.context import StatusContext
from headrace.pipeline.status.finding import SourceReport
from headrace.pipeline.status.parts import parts
from headrace.settings import ENVIRONMENT, Settings
from headrace.settings.log_format import LOG_DEFAULTS, log_variables

blueprint = Blueprint("system", __name__)

AGE_S: Final = 15.0
DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting as text, with secrets masked. `origin` is the settings file, the environment, the command line, or
    `default`."""

    key: str
    value: str
    origin: str
    default: str


SETTINGS: Final[PagedTable[ShownSetting]] = PagedTable(
    "settings",
    (
        TableColumn("key", "setting", lambda one: one.key, CellKind.CODE),
        TableColumn("value", "value", lambda one: one.value),
        TableColumn("from", "from", lambda one: one.origin),
        TableColumn("default", "default", lambda one: one.default if one.default != one.value else ""),
    ),
    lambda one: (one.key, one.value, one.origin),
    "There are no settings.",
)


@blueprint.get("/system")
def page() -> str | Response:
    context = console()
    settings, now_ms = context.settings, context.now_ms()
    may_see_settings = viewer().may_administer_everything
    if "as" in request.args and not may_see_settings:
        abort(403, "The settings need the permission admin on all subjects.")
    report = context.sources.read("parts", lambda: read_parts(settings, now_ms), max_age_s=AGE_S)
    if (response := unchanged(report)) is not None:
        return response
    shown = list(shown_settings(settings, context.origins)) if may_see_settings else []
    shown.sort(key=lambda one: one.origin == DEFAULT)
    view = SETTINGS.view(shown, now_ms)
    if (export := view.export()) is not None:
        return export
    return render_template(
        "system.html",
        report=report,
        python=f"{platform.python_version()} on {platform.system()} {platform.release()}",
        started_ms=context.started_ms,
        may_see_settings=may_see_settings,
        table=view,
    )


def read_parts(settings: Settings, now_ms: int) -> SourceReport:
    """Sends a request to each part and returns the facts and findings."""
    with contextlib.closing(StatusContext(settings, now_ms)) as context:
        return parts(context)


def shown_settings(settings: Settings, origins: Mapping[str, str]) -> Iterator[ShownSetting]:
    """Yields all settings and the variables that configure the log, with secrets masked.

    Args:
        origins: the sources of the settings that are set explicitly, by dotted key.
    """
    defaults = Settings().shown()
    for key, value in settings.shown().items():
        yield ShownSetting(key, value, origins.get(key, DEFAULT), defaults.get(key, ""))
    from_environment = log_variables()
    for key, default in LOG_DEFAULTS.items():
        origin = ENVIRONMENT if key in from_environment else DEFAULT
        yield ShownSetting(key, from_environment.get(key, default), origin, default)
