"""Checks of each request, and the headers of each response.

A page of another port of 127.0.0.1 is of the same site, so its forms send all cookies. Requests that may change
something are therefore accepted only if the browser states that they come from this very origin (`Sec-Fetch-Site`,
else `Origin`), and with the token of the session. Requests with an Authorization header need no token, because
browsers do not add this header to a form of another page.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response, abort, current_app, g, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from headrace.console.access import SignInDenied, Viewer
from headrace.console.addresses import host_name
from headrace.console.context import console
from headrace.console.sessions import AGE_MS_MAX, ConsoleSession

logger = logging.getLogger(__name__)

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
PUBLIC_ENDPOINTS: Final = frozenset(
    {"static", "health.healthz", "sign_in.page", "sign_in.submit", "sign_in.begin", "sign_in.finish"}
)
"""Endpoints without a permission check."""
ENDPOINTS_OF_PROGRAMS: Final = frozenset({"metrics.page"})
"""Endpoints that clients request without a browser: they get 401 in place of the page that signs in."""
FORM_FIELD: Final = "form_token"
COOKIE: Final = "headrace"
HOST_COOKIE: Final = "__Host-headrace"
"""Name of the cookie under TLS: browsers accept it only with `Secure`, without a domain and for all paths."""
REVALIDATE: Final = "private, no-cache"
NO_STORE: Final = "no-store"
"""Cache-Control of responses with the content of messages; pages set it on their responses."""


def install(app: Flask, trusted: Collection[str], *, is_secure: bool) -> None:
    """Adds the checks and headers to the application.

    Args:
        trusted: the host names that requests may use. Werkzeug's `TRUSTED_HOSTS` never accepts an IPv6 address.
        is_secure: whether browsers use the console through TLS.
    """
    app.config["CONSOLE_HOSTS"] = trusted
    app.config["CONSOLE_COOKIE"] = HOST_COOKIE if is_secure else COOKIE
    app.config["CONSOLE_COOKIE_SECURE"] = is_secure
    app.before_request(_check_request)
    app.after_request(_add_headers)


def _check_request() -> AnyResponse | None:
    if host_name(request.host) not in current_app.config["CONSOLE_HOSTS"]:
        abort(400, "This name is not one of the console's: see console.public_url.")
    if request.method not in SAFE_METHODS:
        _check_origin()
    if request.endpoint in ("static", "health.healthz"):
        return None
    g.session, g.viewer = _identified()
    if request.method not in SAFE_METHODS and request.endpoint != "sign_in.submit" and not request.authorization:
        _check_token()
    if request.endpoint in PUBLIC_ENDPOINTS or g.viewer.may_read:
        return None
    if g.viewer.name or request.method not in SAFE_METHODS:
        abort(403)
    if request.endpoint in ENDPOINTS_OF_PROGRAMS:
        abort(401)
    return redirect(url_for("sign_in.page", next=request.full_path.removesuffix("?")))


def _check_origin() -> None:
    """Rejects a request of another origin.

    Raises:
        Forbidden: it is one, or the client states no origin and no credentials.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None:
        is_same = site == "same-origin"
    elif origin is not None:
        is_same = origin == request.host_url.removesuffix("/")
    else:
        is_same = bool(request.authorization)
    if not is_same:
        logger.warning("request_rejected reason=other_origin site=%s origin=%s", site, origin)
        abort(403, "The request came from another site, or the client did not state its site.")


def _check_token() -> None:
    sent = request.form.get(FORM_FIELD, "")
    session: ConsoleSession | None = g.session
    if session is None or not hmac.compare_digest(sent.encode("utf-8", "replace"), session.form_token.encode()):
        abort(403, "The form has expired. Open the page again.")


def _identified() -> tuple[ConsoleSession | None, Viewer]:
    """Returns the session of the request, None without one, and its sender."""
    access = console().access
    header = request.headers.get("Authorization")
    if header is not None:
        try:
            return None, access.authenticate(header, request.remote_addr or "")
        except SignInDenied as error:
            abort(401, str(error))
    secret = request.cookies.get(request_cookie(), "")
    session = console().sessions.find(secret, console().now_ms()) if secret else None
    found = None if session is None else access.of_session(session)
    return (None, access.anonymous()) if found is None else (session, found)


def request_cookie() -> str:
    """Returns the name of the session cookie."""
    return str(current_app.config["CONSOLE_COOKIE"])


def form_token() -> str:
    """Returns the token for the forms of this page. Begins a session if the browser has none."""
    if g.session is None:
        g.session = console().sessions.begin("", "", console().now_ms())
        g.new_session = g.session
    return str(g.session.form_token)


def begin_session(user: str, roles: tuple[str, ...] | None = None) -> None:
    """Begins a session with a new id after a sign-in, and ends the browser's previous session.

    Args:
        roles: the roles that an OpenID provider stated; None for a user of the users file.
    """
    if g.session is not None:
        console().sessions.end(g.session.secret)
    stamp = console().access.password_stamp(user) if roles is None else ""
    g.session = g.new_session = console().sessions.begin(user, stamp, console().now_ms(), roles)


def end_session() -> None:
    if g.session is not None:
        console().sessions.end(g.session.secret)
    g.session, g.ends_session = None, True


def is_own_path(target: str) -> bool:
    """Whether a redirect to this target stays in the console. Browsers read a backslash as a slash and ignore control
    characters."""
    parts = urlsplit(target) if target.isprintable() and "\\" not in target else None
    return parts is not None and target.startswith("/") and not target.startswith("//") and not parts.netloc


def _add_headers(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers[name] = value
    if request.endpoint == "static":
        return response
    response.headers.setdefault("Cache-Control", REVALIDATE)
    response.vary.add("Cookie")
    if g.get("page_tag") and response.status_code == 200:
        response.set_etag(g.page_tag, weak=True)
    cookie, is_secure = request_cookie(), bool(current_app.config["CONSOLE_COOKIE_SECURE"])
    if g.get("new_session") is not None:
        response.set_cookie(
            cookie,
            g.new_session.secret,
            max_age=AGE_MS_MAX // 1000,
            httponly=True,
            secure=is_secure,
            samesite="Lax",
        )
    elif g.get("ends_session"):
        response.delete_cookie(cookie, secure=is_secure, httponly=True, samesite="Lax")
    return response
