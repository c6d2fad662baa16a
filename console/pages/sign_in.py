"""Sign-in with a user of `registry.users`, and sign-out."""

from __future__ import annotations

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from headrace.console.access import BUSY, SignInDenied
from headrace.console.context import console
from headrace.console.security import begin_session, end_session, is_own_path

blueprint = Blueprint("sign_in", __name__)


@blueprint.get("/sign-in")
def page() -> str | Response:
    if console().access.users is None:
        return redirect(url_for("now.page"))
    return render_template("sign_in.html", target=_target(), user="", problem="")


@blueprint.post("/sign-in")
def submit() -> tuple[str, int] | Response:
    user, password = request.form.get("user", "").strip(), request.form.get("password", "")
    try:
        found = console().access.log_in(user, password, request.remote_addr or "")
    except SignInDenied as error:
        status = 503 if str(error) == BUSY else 401
        return render_template("sign_in.html", target=_target(), user=user, problem=str(error)), status
    begin_session(found.name)
    return redirect(request.script_root + _target(), 303)


@blueprint.post("/sign-out")
def sign_out() -> Response:
    end_session()
    return redirect(url_for("now.page"), 303)


def _target() -> str:
    """Returns the path of the page to show after the sign-in."""
    target = request.values.get("next", "/")
    return target if is_own_path(target) else "/"
