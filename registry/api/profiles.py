"""Which release's bodies the client of the present request gets."""

from __future__ import annotations

from flask import request

from registry.api.entities import Profile
from registry.api.services import services

ACCEPT_UNKNOWN_HEADER = "Confluent-Accept-Unknown-Properties"


def profile() -> Profile:
    """The configured one; clients that say that they ignore keys which they do not know get all that there are."""
    if request.headers.get(ACCEPT_UNKNOWN_HEADER, "").lower() == "true":
        return Profile.FULL
    return services().profile
