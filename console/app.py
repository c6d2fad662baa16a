"""The console as a WSGI application."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from flask import Flask, g, render_template, request
from jinja2 import StrictUndefined
from werkzeug.exceptions import HTTPException
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.routing import BaseConverter

from headrace.console import formats, request_counts, security
from headrace.console.access import ConsoleAccess
from headrace.console.actions.storage import ActionStore
from headrace.console.addresses import is_secure_for_browsers, public_path, trusted_hosts
from headrace.console.audit_reader import AuditReader
from headrace.console.broker_reader import BrokerReader
from headrace.console.commit_reader import CommitReader
from headrace.console.context import EXTENSION, ConsoleContext, console
from headrace.console.drawing.rails import HEIGHT, LOOK_OF
from headrace.console.pages import PAGES, Page
from headrace.console.pages.alerts import page_of
from headrace.console.registry_reader import RegistryReader
from headrace.console.sessions import SessionStore
from headrace.console.sources import SourceReader
from headrace.settings import Settings

logger = logging.getLogger(__name__)

FORM_BYTES_MAX: Final = 1024 * 1024
STATIC_AGE_S: Final = 31_536_000
THEMES: Final = ("light", "dark")
THEME_COOKIE: Final = "headrace-theme"


def create_app(
    settings: Settings,
    access: ConsoleAccess,
    sessions: SessionStore,
    actions: ActionStore,
    commits: CommitReader | None = None,
    *,
    version: str = "unknown",
    origins: Mapping[str, str] | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Flask:
    """Creates the application.

    Args:
        access: the users and their permissions.
        sessions: the sessions of browsers.
        actions: the queue of actions, which an `ActionWorker` runs.
        commits: reads the commit log; by default one that has read nothing.
        version: the version that pages show.
        origins: the sources of the settings that are set explicitly, by dotted key; None if they are unknown.
        now_ms: the clock, in milliseconds since 1970.

    Raises:
        ConsoleUnusable: `console.public_url` is no URL.
    """
    own = settings.console
    path, is_secure = public_path(own), is_secure_for_browsers(own)
    own_directory = str(Path(__file__).parent)
    # With both paths Flask does not search for the package, which fails in some editable installs.
    app = Flask("headrace.console", root_path=own_directory, instance_path=own_directory, static_url_path="/static")
    app.config["MAX_CONTENT_LENGTH"] = app.config["MAX_FORM_MEMORY_SIZE"] = FORM_BYTES_MAX
    app.config["SEND_FILE_MAX_AGE_DEFAULT"] = STATIC_AGE_S
    app.url_map.strict_slashes = False
    app.url_map.converters["name"] = _NameConverter
    app.extensions[EXTENSION] = ConsoleContext(
        settings,
        access,
        sessions,
        actions,
        SourceReader(now_ms),
        AuditReader(settings),
        commits or CommitReader(settings),
        RegistryReader(settings),
        BrokerReader(settings),
        now_ms,
        version,
        origins or {},
        now_ms(),
    )
    if path:
        app.wsgi_app = _BasePath(app.wsgi_app, path)  # type: ignore[method-assign]  # Flask's documented way
    if own.proxies:
        app.wsgi_app = ProxyFix(  # type: ignore[method-assign]
            app.wsgi_app, x_for=own.proxies, x_proto=own.proxies, x_host=own.proxies, x_prefix=0
        )
    _prepare_templates(app)
    request_counts.install(app)
    security.install(app, trusted_hosts(own), is_secure=is_secure)
    for page in PAGES:
        app.register_blueprint(page.blueprint)
    app.register_error_handler(HTTPException, _error_page)
    app.register_error_handler(Exception, _failure_page)
    return app


def _prepare_templates(app: Flask) -> None:
    environment = app.jinja_env
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.undefined = StrictUndefined
    environment.finalize = formats.visible
    for function in (
        formats.utc,
        formats.iso,
        formats.clock,
        formats.span,
        formats.number,
        formats.size,
        formats.sentence,
    ):
        environment.filters[function.__name__] = function
    environment.globals.update(look_of=LOOK_OF, rail_height=HEIGHT)
    environment.globals.update(
        plural=formats.plural, page_of=page_of, form_token=security.form_token, static_url=_static_urls(app)
    )
    app.context_processor(_common_values)


def _common_values() -> dict[str, Any]:
    context = console()
    theme = request.cookies.get(THEME_COOKIE, "")
    return {
        "theme": theme if theme in THEMES else "",
        "now_ms": context.now_ms(),
        "menu": [page for page in PAGES if page.menu],
        "topic_tabs": [page for page in PAGES if page.topic_tab],
        "current": _page_of(request.blueprint),
        "viewer": g.get("viewer"),
        "has_users": context.access.users is not None,
        "is_signed_in": g.get("session") is not None and bool(g.session.user),
        "version": context.version,
    }


def _page_of(blueprint: str | None) -> Page | None:
    return next((page for page in PAGES if page.blueprint.name == blueprint), None)


def _static_urls(app: Flask) -> Callable[[str], str]:
    """Returns a function that returns the URL of a static file, which changes with its content, so that browsers cache
    it for a year."""
    directory = Path(str(app.static_folder))
    stamps = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in directory.iterdir()}

    def static_url(name: str) -> str:
        return app.url_for("static", filename=name, v=stamps[name])

    return static_url


def _error_page(error: HTTPException) -> Any:
    if error.response is not None:
        return error.response
    sentence = "" if error.description == type(error).description else str(error.description or "")
    title = TITLES.get(error.code or 500, error.name)
    return render_template("error.html", title=title, sentence=sentence), error.code or 500


def _failure_page(error: Exception) -> Any:
    logger.error("page_failed path=%s", request.path, exc_info=error)
    return render_template("error.html", title=TITLES[500], sentence="The log of the console has the cause."), 500


TITLES: Final = {
    400: "The request cannot be understood.",
    401: "Sign in to see this page.",
    403: "You do not have the permission for this.",
    404: "There is no such page.",
    405: "This page does not accept such requests.",
    413: "The request is too large.",
    500: "The page failed.",
    503: "The rows are not known now.",
}


class _NameConverter(BaseConverter):
    """A name in a path, which may contain slashes and line breaks. It must be the end of the path.

    Browsers remove the segments `.` and `..` from a path, also as `%2E`. Kafka forbids these names, but a producer may
    count them: in a path they end with a slash.
    """

    regex = r"[\s\S]+"
    part_isolating = False

    def to_python(self, value: str) -> str:
        return value[:-1] if value in ("./", "../") else value

    def to_url(self, value: Any) -> str:
        name = f"{value}/" if value in (".", "..") else str(value)
        return quote(name, safe="", errors="replace")


class _BasePath:
    """Middleware that serves the pages below a path prefix, whether or not a reverse proxy removes it."""

    def __init__(self, application: Callable[..., Iterable[bytes]], prefix: str) -> None:
        self._application = application
        self._prefix = prefix

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == self._prefix or path.startswith(f"{self._prefix}/"):
            environ["PATH_INFO"] = path.removeprefix(self._prefix) or "/"
        environ["SCRIPT_NAME"] = self._prefix
        return self._application(environ, start_response)
