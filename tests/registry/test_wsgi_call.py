"""Calls of the WSGI application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.registry.api.wsgi_call import call


class Parts:
    """The body of a WSGI response."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield b"{"
        if self.error is not None:
            raise self.error
        yield b"}"

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("error", [None, OSError("disk")])
def test_body_is_closed_after_success_and_error(error: OSError | None) -> None:
    parts = Parts(error)

    def application(environ: dict[str, Any], start_response: Any) -> Parts:
        start_response("200 OK", [])
        return parts

    if error is None:
        assert call(application, {}).body == b"{}"
    else:
        with pytest.raises(OSError, match="disk"):
            call(application, {})
    assert parts.is_closed
