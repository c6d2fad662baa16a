"""Access control of the application: whether whoever asks may ask that, and what answer and body may then hold."""

from __future__ import annotations

from collections.abc import Callable

from flask import Flask, Response, request

from headrace.registry.access.authenticator import UsersFile
from headrace.registry.access.needs import (
    FORBIDDEN,
    NO_CREDENTIALS,
    About,
    Need,
    Refusal,
    decide,
    denied,
    need_of,
    route_label,
)
from headrace.registry.access.rights import Right, Rights, Target
from headrace.registry.access.users import Principal
from headrace.registry.api.answers import problem, query_flag
from headrace.registry.api.hooks import ANYBODY, ASKS_KEY, CERTIFICATE_KEY, PRINCIPAL_KEY, WORTH_RECEIVING
from headrace.registry.domain import ConfigChange, SchemaRequest
from headrace.registry.errors import AccessRefused
from headrace.registry.names import context_name, in_context_of, scope_name, subject_name

CHALLENGE = 'Basic realm="schema registry", charset="UTF-8"'
BEARER_CHALLENGE = 'Bearer realm="schema registry"'
BUSY_RETRY_S = 1


def install(app: Flask, users: UsersFile) -> None:
    """Makes every request of the app be decided about before anything else is done with it."""

    def decide_request() -> Response | None:
        # The front has mostly known who it is, a moment ago.
        answer = request.environ.get(PRINCIPAL_KEY) or users.authenticate(
            request.headers.get("Authorization"), request.remote_addr or "", request.environ.get(CERTIFICATE_KEY, "")
        )
        if isinstance(answer, Refusal):
            return _refused(answer, users)
        # The server keeps answers by who asked, and names them in its log.
        request.environ[PRINCIPAL_KEY] = answer
        if request.url_rule is None:
            return None  # where nothing is, there is nothing to protect
        need = need_of(request.method, route_label(request.url_rule.rule))
        refusal = _refusal(answer, need)
        if refusal is not None:
            return _refused(refusal, users)
        # What is open to all reads no body.
        asks = need.about is not About.NOTHING and ASKS_KEY in request.environ
        return Response(status=WORTH_RECEIVING) if asks else None

    def refuse(error: AccessRefused) -> Response:
        # Found out late, with the schema or the body. Who has said nothing of themselves is asked to, as before that.
        name = principal().name
        return _refused(Refusal(403, FORBIDDEN, str(error)) if name else NO_CREDENTIALS, users)

    app.before_request(decide_request)
    app.register_error_handler(AccessRefused, refuse)


def _refusal(principal: Principal, need: Need) -> Refusal | None:
    right = Right.ADMIN if need.raised_by and query_flag(need.raised_by) else need.right
    everywhere = principal.rights.everywhere
    if need.about is About.NOTHING or (everywhere is not None and everywhere >= right):
        return None
    # First whether they may do so anywhere: strangers are not told which names are valid.
    return decide(principal, right, About.ANYTHING, None) or decide(principal, right, need.about, _target(need))


def _target(need: Need) -> Target | None:
    values = request.view_args or {}
    match need.about:
        case About.SUBJECT:
            return Target.of_subject(subject_name(values["subject"]))
        case About.SCOPE:
            return Target.of_scope(scope_name(values["subject"]) if "subject" in values else None)
        case About.CONTEXT if "context" in values:
            return Target(context_name(values["context"]))
    return None


def _refused(refusal: Refusal, users: UsersFile) -> Response:
    response = problem(refusal.status, refusal.error_code, refusal.message)
    if refusal.status == 401:
        response.headers.add("WWW-Authenticate", CHALLENGE)
        if users.takes_tokens:
            response.headers.add("WWW-Authenticate", BEARER_CHALLENGE)
    elif refusal.status == 429:
        response.headers["Retry-After"] = str(BUSY_RETRY_S)
    return response


def principal() -> Principal:
    found = request.environ.get(PRINCIPAL_KEY, ANYBODY)
    assert isinstance(found, Principal)
    return found


def rights() -> Rights:
    return principal().rights


def may_read(subject: str) -> bool:
    return rights().allow(Right.READ, Target.of_subject(subject))


def is_restricted() -> bool:
    """Whether whoever asks may not read everything."""
    return rights().everywhere is None


def require_rights_in(body: object, standing_for: Callable[[str], str]) -> None:
    """Refuses a body that brings other subjects in which its sender has no right to.

    A schema shows what it refers to, so that must be readable. An alias gives those who have rights on one subject the
    same rights on another, which only an administrator of that other one can give.

    Args:
        body: what was sent.
        standing_for: the subject that a subject stands for.

    Raises:
        AccessRefused: it does.
        InvalidSubject: it names what can be no subject.
    """
    if rights().everywhere is Right.ADMIN:
        return
    place = (request.view_args or {}).get("subject", "")
    if isinstance(body, SchemaRequest) and body.references:
        # They are looked for where an alias leads.
        subject = standing_for(subject_name(place))
        for reference in body.references:
            _require(Right.READ, in_context_of(subject, reference.subject))
    elif isinstance(body, ConfigChange) and body.values.alias:
        _require(Right.ADMIN, in_context_of(scope_name(place) or "", body.values.alias))


def _require(right: Right, subject: str) -> None:
    target = Target.of_subject(subject)
    if not rights().allow(right, target):
        raise AccessRefused(denied(principal(), right, target).message)
