"""Sign-in with a user of `registry.users` or through an OpenID provider, and sign-out."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from flask import Blueprint, abort, current_app, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from headrace.console.access import BUSY, SignInDenied
from headrace.console.context import console
from headrace.console.errors import OidcSignInFailed
from headrace.console.formats import visible
from headrace.console.security import NO_STORE, begin_session, end_session, is_own_path, request_cookie

if TYPE_CHECKING:
    from headrace.console.oidc import OidcLogin

logger = logging.getLogger(__name__)
SIGN_IN_AGE_S: Final = 600

blueprint = Blueprint("sign_in", __name__)


@blueprint.get("/sign-in")
def page() -> str | Response:
    if console().access.users is None:
        return redirect(url_for("now.page"))
    return _form()


@blueprint.post("/sign-in")
def submit() -> tuple[str, int] | Response:
    user, password = request.form.get("user", "").strip(), request.form.get("password", "")
    try:
        found = console().access.log_in(user, password, request.remote_addr or "")
    except SignInDenied as error:
        status = 503 if str(error) == BUSY else 401
        return _form(user, str(error)), status
    begin_session(found.name)
    return redirect(request.script_root + _target(), 303)


@blueprint.get("/sign-in/oidc")
def begin() -> Response | tuple[str, int]:
    """Sends the browser to the OpenID provider."""
    oidc = _oidc()
    secret = secrets.token_urlsafe(32)
    try:
        url = oidc.authorization_url(secret, _target(), _redirect_uri(), console().now_ms())
    except OidcSignInFailed as error:
        return _failed(error)
    response = redirect(url)
    _set_cookie(response, secret, SIGN_IN_AGE_S)
    response.headers["Cache-Control"] = NO_STORE
    return response


@blueprint.get("/sign-in/oidc/done")
def finish() -> Response | tuple[str, int]:
    """Receives the browser from the OpenID provider, and begins the session."""
    oidc = _oidc()
    secret = request.cookies.get(_cookie_name(), "")
    try:
        identity, target = oidc.finish(secret, request.args, _redirect_uri(), console().now_ms())
    except OidcSignInFailed as error:
        return _failed(error)
    begin_session(identity.name, identity.roles)
    response = redirect(request.script_root + (target if is_own_path(target) else "/"), 303)
    _set_cookie(response, "", 0)
    return response


def _oidc() -> OidcLogin:
    found = console().access.oidc
    if found is None:
        abort(404)
    return found


def _failed(error: OidcSignInFailed) -> tuple[str, int]:
    logger.warning("oidc_sign_in_failed address=%s reason=%s", request.remote_addr, visible(error.reason))
    return _form(problem=str(error)), 503 if error.is_unreachable else 401


def _redirect_uri() -> str:
    """Returns the URL to which the provider sends browsers back; it must be registered there."""
    public = console().settings.console.public_url
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(public)) if public else request.host_url.rstrip("/")
    return origin + url_for("sign_in.finish")


def _cookie_name() -> str:
    return f"{request_cookie()}-sign-in"


def _set_cookie(response: Response, secret: str, age_s: int) -> None:
    is_secure = bool(current_app.config["CONSOLE_COOKIE_SECURE"])
    response.set_cookie(_cookie_name(), secret, max_age=age_s, httponly=True, secure=is_secure, samesite="Lax")


@blueprint.post("/sign-out")
def sign_out() -> Response:
    end_session()
    return redirect(url_for("now.page"), 303)


def _form(user: str = "", problem: str = "") -> str:
    oidc = console().access.oidc
    provider = oidc.name if oidc is not None else ""
    return render_template("sign_in.html", target=_target(), user=user, problem=problem, provider=provider)


def _target() -> str:
    """Returns the path of the page to show after the sign-in."""
    target = request.values.get("next", "/")
    return target if is_own_path(target) else "/"
