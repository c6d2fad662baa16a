"""Checks each server of a registry once: whether it answers, and whether its database does.

A registry of Headrace has `/healthz`, which reads nothing, and `/readyz`, which reads its database. Other registries
have neither; a list of at most one subject is then the check. If the client may read `/metrics` of a registry that is
ready, the result also has its counts of responses and its replication lag.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from enum import StrEnum

from headrace.registry.client.access import Server
from headrace.registry.client.connections import HttpResponse, RequestFailed
from headrace.registry.client.transport import ApiCall, Transport
from headrace.registry.errors import RegistryUnavailable

REASON_CHARACTERS_MAX = 500
RESPONSES = re.compile(r'^headrace_registry_requests_total\{.*\bstatus="(\d+)".*\} (\S+)$', re.MULTILINE)
REPLICATION_LAG = re.compile(r"^headrace_registry_replication_lag_seconds (\S+)$", re.MULTILINE)
NO_REGISTRY = "another program than a schema registry listens there (HTTP 404 for /subjects)"


class Readiness(StrEnum):
    """`ready`: serves requests. `no_database`: the server answers and its database does not. `refused`: the server
    rejects the credentials. `failed`: it answers with another error. `silent`: it accepts the connection and does not
    answer in time. `unreachable`: no connection."""

    READY = "ready"
    NO_DATABASE = "no_database"
    REFUSED = "refused"
    FAILED = "failed"
    SILENT = "silent"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ServerMetrics:
    """The number of responses of a server since its start, and of those with status 5xx; and the replication lag in
    seconds; None if the server is not one of a replica."""

    responses: int
    server_errors: int
    replication_lag_s: float | None


@dataclass(frozen=True, slots=True)
class ServerReadiness:
    """The result for one server; `url` has no credentials. `is_headrace` is False for a registry without `/readyz`, and
    for one that does not answer. `reason` is "" for `ready`. `date_ms` is the server's time when it answered, in
    milliseconds since 1970 and whole seconds; None if it sends none. `audit_lines_lost` is the number of changes that
    are missing in the audit log since the server's start. `metrics` is None if the client could not read them.
    """

    url: str
    readiness: Readiness
    is_headrace: bool = False
    reason: str = ""
    date_ms: int | None = None
    audit_lines_lost: int = 0
    metrics: ServerMetrics | None = None


def readiness_of(transport: Transport) -> tuple[ServerReadiness, ...]:
    """Returns the readiness of each server of a client, in the order of its URLs. Sends at most three requests to each,
    and repeats none."""
    return tuple(_readiness(transport, server) for server in transport.servers)


def _readiness(transport: Transport, server: Server) -> ServerReadiness:
    try:
        alive = transport.send_once(server, ApiCall.of("GET", "/healthz"))
        if alive.status == 404:
            return _of_other(server, transport.send_once(server, ApiCall.of("GET", "/subjects", {"limit": "1"})))
    except RegistryUnavailable as error:
        return ServerReadiness(server.url, Readiness.FAILED, reason=str(error))
    except RequestFailed as failure:
        readiness = Readiness.SILENT if failure.may_have_executed else Readiness.UNREACHABLE
        return ServerReadiness(server.url, readiness, reason=str(failure))
    try:
        found = _of_headrace(server, transport.send_once(server, ApiCall.of("GET", "/readyz")))
    except RequestFailed as failure:
        return ServerReadiness(server.url, Readiness.NO_DATABASE, is_headrace=True, reason=str(failure))
    return replace(found, metrics=_metrics(transport, server)) if found.readiness == Readiness.READY else found


def _metrics(transport: Transport, server: Server) -> ServerMetrics | None:
    try:
        page = transport.send_once(server, ApiCall.of("GET", "/metrics"))
        text = page.body.decode() if page.status == 200 else ""
        responses = [(status, float(number)) for status, number in RESPONSES.findall(text)]
        lag_s = [float(number) for number in REPLICATION_LAG.findall(text)]
    except (RequestFailed, RegistryUnavailable, ValueError):
        return None
    if not responses:
        return None
    errors = sum(number for status, number in responses if status.startswith("5"))
    return ServerMetrics(int(sum(number for _, number in responses)), int(errors), lag_s[0] if lag_s else None)


def _of_other(server: Server, listed: HttpResponse) -> ServerReadiness:
    if listed.status == 200:
        return ServerReadiness(server.url, Readiness.READY, date_ms=_date_ms(listed))
    readiness = Readiness.REFUSED if listed.status in (401, 403) else Readiness.FAILED
    reason = NO_REGISTRY if listed.status == 404 else _reason(listed)
    return ServerReadiness(server.url, readiness, reason=reason)


def _of_headrace(server: Server, response: HttpResponse) -> ServerReadiness:
    if response.status == 200:
        lost = _document(response).get("audit_lines_lost")
        lines = lost if isinstance(lost, int) else 0
        return ServerReadiness(server.url, Readiness.READY, True, date_ms=_date_ms(response), audit_lines_lost=lines)
    readiness = Readiness.NO_DATABASE if _error_code(response) == 50001 else Readiness.FAILED
    return ServerReadiness(server.url, readiness, is_headrace=True, reason=_reason(response))


def _error_code(response: HttpResponse) -> int | None:
    code = _document(response).get("error_code")
    return code if isinstance(code, int) else None


def _reason(response: HttpResponse) -> str:
    message = _document(response).get("message")
    text = f"HTTP {response.status}" + (f": {message}" if isinstance(message, str) else "")
    return " ".join(text.split())[:REASON_CHARACTERS_MAX]


def _document(response: HttpResponse) -> dict[str, object]:
    try:
        document = json.loads(response.body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _date_ms(response: HttpResponse) -> int | None:
    try:
        return int(parsedate_to_datetime(response.date).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
