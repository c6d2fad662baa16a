"""How the client of the present request wants schemas: which release's bodies, and in which form."""

from __future__ import annotations

from flask import request

from headrace.registry.api.entities import Profile
from headrace.registry.api.services import services
from headrace.registry.domain import StoredSchema
from headrace.registry.service.presentation import Shown, Wish

ACCEPT_UNKNOWN_HEADER = "Confluent-Accept-Unknown-Properties"


def profile() -> Profile:
    """The configured one; clients that say that they ignore keys which they do not know get all that there are."""
    if request.headers.get(ACCEPT_UNKNOWN_HEADER, "").lower() == "true":
        return Profile.FULL
    return services().profile


def as_shown(schema: StoredSchema) -> Shown:
    """What is shown of a schema in place of what is stored, as the query asks."""
    query = request.args
    # confluent-kafka's Python client writes parameters with underscores.
    reference_format = query.get("referenceFormat", query.get("reference_format", ""))
    tags = tuple(query.getlist("findTags") or query.getlist("find_tags"))
    return services().presentation.shown(schema, Wish(query.get("format", ""), reference_format, tags))


def shown_text(schema: StoredSchema) -> str:
    text = as_shown(schema).text
    return schema.content.text if text is None else text
