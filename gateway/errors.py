"""Errors of the gateway, with the HTTP status and the error code of Confluent's REST Proxy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


@dataclass(frozen=True, slots=True)
class HttpProblem:
    """An HTTP status and the `error_code` of the body."""

    status: int
    code: int


class Kind(Enum):
    """The kinds of errors, with the codes of the REST Proxy for errors that it has too."""

    NOT_OWNER = HttpProblem(307, 307)
    BAD_REQUEST = HttpProblem(400, 400)
    KAFKA_REFUSED = HttpProblem(400, 40002)
    NOT_AUTHENTICATED = HttpProblem(401, 40101)
    NOT_AUTHORIZED = HttpProblem(403, 40301)
    NOT_FOUND = HttpProblem(404, 404)
    TOPIC_NOT_FOUND = HttpProblem(404, 40401)
    PARTITION_NOT_FOUND = HttpProblem(404, 40402)
    INSTANCE_OR_PARTITION_NOT_FOUND = HttpProblem(404, 40403)
    SESSION_UNKNOWN = HttpProblem(404, 40470)
    TRANSACTION_UNKNOWN = HttpProblem(404, 40471)
    METHOD_NOT_ALLOWED = HttpProblem(405, 405)
    NOT_ACCEPTABLE = HttpProblem(406, 406)
    FORMAT_MISMATCH = HttpProblem(406, 40601)
    BODY_TIMEOUT = HttpProblem(408, 408)
    INSTANCE_EXISTS = HttpProblem(409, 40902)
    ILLEGAL_STATE = HttpProblem(409, 40903)
    SESSION_ENDED = HttpProblem(409, 40970)
    CHUNK_DIFFERS = HttpProblem(409, 40971)
    NOT_CONVERTED = HttpProblem(409, 40972)
    CHUNK_EXPIRED = HttpProblem(410, 41070)
    TRANSACTION_TOO_OLD = HttpProblem(410, 41071)
    SESSION_CHANGED = HttpProblem(412, 41270)
    BODY_TOO_LARGE = HttpProblem(413, 41301)
    UNSUPPORTED_MEDIA_TYPE = HttpProblem(415, 415)
    MALFORMED = HttpProblem(422, 422)
    FETCH_MIN_BYTES = HttpProblem(422, 40001)
    KEY_SCHEMA_MISSING = HttpProblem(422, 42201)
    VALUE_SCHEMA_MISSING = HttpProblem(422, 42202)
    UNCONVERTIBLE = HttpProblem(422, 42203)
    CONSUMER_CONFIG = HttpProblem(422, 42204)
    INVALID_SCHEMA = HttpProblem(422, 42205)
    UNDECODABLE = HttpProblem(422, 42207)
    BATCH = HttpProblem(422, 42208)
    RECORDS_REJECTED = HttpProblem(422, 42270)
    TOO_MANY_REQUESTS = HttpProblem(429, 42900)
    DEFECT = HttpProblem(500, 500)
    KAFKA_FAILED = HttpProblem(500, 50002)
    KAFKA_RETRIABLE = HttpProblem(500, 50003)
    KAFKA_UNAVAILABLE = HttpProblem(503, 50302)
    REGISTRY_UNAVAILABLE = HttpProblem(503, 50301)
    DISK_FULL = HttpProblem(507, 50770)


RETRY_AFTER_S: Final = 1


class GatewayError(Exception):
    """An error response.

    Attributes:
        kind: status and code.
        message: the problem and the remedy.
        retry_after_s: when the client may try again; None for no such header.
    """

    def __init__(self, kind: Kind, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        return self.kind.value.status

    @property
    def body(self) -> dict[str, object]:
        return {"error_code": self.kind.value.code, "message": self.message}
