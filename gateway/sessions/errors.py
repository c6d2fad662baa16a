"""Why a request to a lane fails."""

from __future__ import annotations


class SessionUnknown(Exception):
    """The lane has no session with this id; the client opens another."""


class SessionEnded(Exception):
    """A later session of the source exists."""

    def __init__(self, host: str, opened_ms: int) -> None:
        super().__init__(f"{f'host {host}' if host else 'another client'} opened a later session of the source")
        self.host = host
        self.opened_ms = opened_ms


class SessionChanged(Exception):
    """The newest session of the source is not the one that an opening names. `number` is its number, 0 if there is
    none."""

    def __init__(self, number: int) -> None:
        super().__init__(f"the newest session of the source has the number {number}")
        self.number = number


class WrongMediaType(Exception):
    """The format of the session does not permit the media type of the chunk."""


class LaneUnavailable(Exception):
    """The lane cannot be served now; the client sends the request again."""


class WriteRefused(Exception):
    """The brokers refused records, which are not stored. `code` is Kafka's error code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
