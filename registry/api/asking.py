"""Who makes the present request, as far as the views need to know: what its answer and its body may hold."""

from __future__ import annotations

from collections.abc import Callable

from flask import request

from headrace.registry.access.needs import denied
from headrace.registry.access.rights import Right, Rights, Target
from headrace.registry.access.users import Principal
from headrace.registry.api.hooks import ANYBODY, PRINCIPAL_KEY
from headrace.registry.domain import ConfigChange, SchemaRequest
from headrace.registry.errors import AccessRefused
from headrace.registry.names import in_context_of, scope_name, subject_name


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
