"""Headers and timestamps of records, as requests contain them."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from typing import Any, Final

from headrace.gateway.errors import GatewayError, Kind
from headrace.gateway.json_stream import UnusableText, check_text

_DIGITS: Final = re.compile(r"-?[0-9]{1,19}")
TIME_MS_MAX: Final = 253_402_300_799_999
"""The end of the year 9999."""


def whole_number(value: Any) -> int | None:
    """Returns the whole number of a value, which may be a text of digits, as in the REST Proxy; else None."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None


def headers_of(value: Any, where: str = "headers") -> tuple[tuple[str, bytes | None], ...]:
    """Returns the headers of a record: a list of objects with a name and a value in base64, which may be null.

    Args:
        where: the place in the request, for the error.

    Raises:
        GatewayError: the value has not this form.
    """
    if value is None:
        return ()
    if not isinstance(value, list):
        raise GatewayError(Kind.BAD_REQUEST, f"{where}: expected a list")
    headers = []
    for index, one in enumerate(value):
        if not isinstance(one, dict) or not one.keys() <= {"name", "value"} or not isinstance(one.get("name"), str):
            raise GatewayError(Kind.BAD_REQUEST, f"{where}[{index}]: expected an object with a text name and a value")
        usable_text(one["name"], f"{where}[{index}].name")
        content = one.get("value")
        try:
            headers.append((one["name"], None if content is None else base64.b64decode(content, validate=True)))
        except (binascii.Error, TypeError, ValueError):
            raise GatewayError(Kind.BAD_REQUEST, f"{where}[{index}].value: expected a text in base64") from None
    return tuple(headers)


def usable_text(text: str, where: str) -> str:
    """Returns a text that can be sent to the brokers and the registry.

    Args:
        where: the place in the request, for the error.

    Raises:
        GatewayError: it has no UTF-8 form, contains a NUL or is too long.
    """
    try:
        check_text(text)
    except UnusableText as error:
        raise GatewayError(Kind.BAD_REQUEST, f"{where}: {error}") from None
    return text


def time_ms(value: Any, where: str = "timestamp") -> int | None:
    """Returns a time in milliseconds since 1970: a number of them, or a text of ISO 8601. None for null.

    Args:
        where: the place in the request, for the error.

    Raises:
        GatewayError: the value has not this form.
    """
    if value is None:
        return None
    found = value
    if isinstance(value, str):
        try:
            time = datetime.datetime.fromisoformat(value)
            found = None if time.tzinfo is None else round(time.timestamp() * 1000)
        except ValueError:
            found = None
    if type(found) is not int or not 0 < found <= TIME_MS_MAX:
        raise GatewayError(Kind.BAD_REQUEST, f"{where}: expected a time after 1970 such as 2026-01-31T12:00:00.000Z")
    return found
