"""Responses: which content type a client accepts, and JSON as the Confluent registry writes it."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, Final

from flask import Response, g, request

PRODUCED: Final = (
    ("application/vnd.schemaregistry.v1+json", 1.0),
    ("application/vnd.schemaregistry+json", 0.9),
    ("application/json", 0.5),
)
"""The content types of responses with the server's own preference for each."""

ACCEPTS_KEPT: Final = 256  # values of `Accept` that are not read again; clients send the same ones all the time

# A quoted text in a parameter may hold what separates ranges. One without its end goes on to the end of all.
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"?')
_WEIGHT: Final = re.compile(r"\d+\.?\d*|\.\d+", re.ASCII)


def content_type() -> str | None:
    """What the client accepts best and the server likes best; None when nothing fits."""
    return acceptable(request.headers.get("Accept", ""))


@lru_cache(ACCEPTS_KEPT)
def acceptable(accept: str) -> str | None:
    """The content type to answer a value of `Accept` with; None when it leaves none.

    Read as JAX-RS reads it and not as RFC 9110 writes it, since Java's own HTTP client of 17.0.3 and before sends
    `text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2`: parameters but the weight say nothing, `*` is `*/*`, and a
    weight may begin with its dot. A range whose weight is no number is no range.
    """
    items = [item for item in _QUOTED.sub("", accept).lower().split(",") if item.strip()]
    if not items:
        return PRODUCED[0][0]
    ranges = [found for found in map(_media_range, items) if found is not None]
    name, quality = max(((name, weight * _wanted(name, ranges)) for name, weight in PRODUCED), key=lambda row: row[1])
    return name if quality > 0 else None


def _media_range(item: str) -> tuple[str, str, float] | None:
    """(type, subtype, weight) of an item of `Accept`; None for what is none."""
    name, *parameters = (part.strip() for part in item.split(";"))
    kind, slash, subkind = name.partition("/")
    if not (slash or kind == "*"):
        return None
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            number = _WEIGHT.fullmatch(value.strip())
            return None if number is None else (kind, subkind, min(float(number[0]), 1.0))
    return kind, subkind, 1.0


def _wanted(name: str, ranges: list[tuple[str, str, float]]) -> float:
    """How much a content type is wanted, by the closest of the ranges that it is in; 0 when it is in none."""
    kind, _, subkind = name.partition("/")
    closest, wanted = -1, 0.0
    for range_kind, range_subkind, weight in ranges:
        if range_kind == "*":
            closeness = 0
        elif range_kind == kind and range_subkind in ("*", subkind):
            closeness = 2 if range_subkind == subkind else 1
        else:
            continue
        if (closeness, weight) > (closest, wanted):
            closest, wanted = closeness, weight
    return wanted


def answer(value: Any, status: int = 200) -> Response:
    """A JSON response."""
    return answer_bytes(to_json(value), status)


def problem(status: int, error_code: int, message: str) -> Response:
    """What every client of the API reads when something is wrong."""
    return answer({"error_code": error_code, "message": message}, status)


def answer_bytes(body: bytes, status: int = 200) -> Response:
    response = Response(body, status)
    # Set afterwards, since Flask would add a charset, which the API's clients do not expect.
    response.headers["Content-Type"] = content_type() or "application/json"
    return response


def do_not_keep() -> None:
    """Says that the present request's answer is not to be given again, whatever it rests on."""
    g.is_passing = True


def to_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def page(items: list[Any], limit_max: int | None = None) -> list[Any]:
    """The part of a list that `offset` and `limit` of the query choose; a limit out of bounds is no limit."""
    offset = max(0, query_integer("offset", 0))
    limit = query_integer("limit", -1)
    if limit <= 0 or (limit_max is not None and limit > limit_max):
        limit = len(items) if limit_max is None else limit_max
    return items[offset : offset + limit]


def query_flag(*names: str) -> bool:
    """Whether a query parameter, by any of its names, says true in any case; all other texts mean false."""
    return any(request.args.get(name, "").lower() == "true" for name in names)


def query_integer(name: str, default: int) -> int:
    text = request.args.get(name, "")
    digits = text.removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 10 else default
