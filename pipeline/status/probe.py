"""Sends a request with a time limit to each part of the platform, to tell a server that responds from one that refuses
connections or only accepts them.

A stopped process still accepts connections, because the kernel does it, so each probe waits for a response.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import struct
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from headrace.kafka_wire.cluster import KafkaCluster
from headrace.kafka_wire.connection import parse_bootstrap_servers
from headrace.kafka_wire.errors import KafkaError, KafkaUnavailable
from headrace.pipeline.sql_protocol import SqlServerUnavailable, ping
from headrace.registry.client import RegistryClient
from headrace.registry.client.readiness import Readiness
from headrace.registry.errors import CredentialsRefused, RegistryError
from headrace.settings.addresses import LiveAddresses

TIMEOUT_S: Final = 5.0
HEALTH_BYTES_MAX: Final = 4096
THRIFT_CALL: Final = 0x80010001  # version 1 of the binary protocol, a call
STATUS_METHOD: Final = b"getStatus"  # of fb303, which every Hive metastore serves


class Health(StrEnum):
    """`up`: responds. `degraded`: one of several equivalent servers does not respond. `silent`: accepts connections and
    does not respond. `down`: no connection. `failing`: responds with an error."""

    UP = "up"
    DEGRADED = "degraded"
    SILENT = "silent"
    DOWN = "down"
    FAILING = "failing"


class ResponseCounts(NamedTuple):
    """The number of responses of a server, and of those with status 5xx."""

    all: int
    errors: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe. `reason` is "" for `up`. `lacks_database` is True for a registry that answers while its
    database does not. `dates_ms` are the times of servers when they answered, in milliseconds since 1970, and
    `audit_lines_lost` the numbers of changes that are missing in their audit logs, both by address. So are `responses`,
    the counts since the start of a server, and `replication_lags_s` of replicas.
    """

    address: str
    health: Health
    reason: str = ""
    lacks_database: bool = False
    dates_ms: Mapping[str, int] = field(default_factory=dict)
    audit_lines_lost: Mapping[str, int] = field(default_factory=dict)
    responses: Mapping[str, ResponseCounts] = field(default_factory=dict)
    replication_lags_s: Mapping[str, float] = field(default_factory=dict)


def silence_text() -> str:
    return f"accepts connections and does not answer within {TIMEOUT_S:g} s"


_REGISTRY_HEALTH: Final = {
    Readiness.READY: Health.UP,
    Readiness.NO_DATABASE: Health.FAILING,
    Readiness.REFUSED: Health.FAILING,
    Readiness.FAILED: Health.FAILING,
    Readiness.SILENT: Health.SILENT,
    Readiness.UNREACHABLE: Health.DOWN,
}


def probe_registry(client: RegistryClient) -> ProbeResult:
    """Requests the readiness of each server of a registry, with the client's time limit. If all are ready, also lists a
    subject: readiness is public, and a registry may reject the credentials of the settings."""
    servers = client.readiness()
    results = [
        ProbeResult(
            one.url,
            _REGISTRY_HEALTH[one.readiness],
            silence_text() if one.readiness == Readiness.SILENT else one.reason,
            one.readiness == Readiness.NO_DATABASE,
        )
        for one in servers
    ]
    dates_ms = {one.url: one.date_ms for one in servers if one.date_ms is not None}
    lost = {one.url: one.audit_lines_lost for one in servers if one.audit_lines_lost}
    metrics = {one.url: one.metrics for one in servers if one.metrics is not None}
    responses = {url: ResponseCounts(one.responses, one.server_errors) for url, one in metrics.items()}
    lags_s = {url: one.replication_lag_s for url, one in metrics.items() if one.replication_lag_s is not None}
    found = _combined(client.url, results)
    if found.health == Health.UP:
        try:
            client.call("GET", "/subjects", query={"limit": "1"})
        except CredentialsRefused as error:
            found = ProbeResult(client.url, Health.FAILING, str(error))
        except RegistryError:  # it ended just now, or denies the list to this user
            pass
    return replace(found, dates_ms=dates_ms, audit_lines_lost=lost, responses=responses, replication_lags_s=lags_s)


def probe_brokers(cluster: KafkaCluster, bootstrap_servers: str) -> ProbeResult:
    """Requests metadata from one broker, and the versions from every broker in it."""
    try:
        cluster.metadata()
    except KafkaUnavailable as error:
        reached = [_reachable(*address) for address in parse_bootstrap_servers(bootstrap_servers)]
        if "" in reached:  # a broker accepts connections
            return ProbeResult(bootstrap_servers, Health.SILENT, _silence_or(str(error)))
        return ProbeResult(bootstrap_servers, Health.DOWN, "; ".join(dict.fromkeys(reached)))
    except (KafkaError, ValueError) as error:
        return ProbeResult(bootstrap_servers, Health.FAILING, str(error))
    _, errors = cluster.request_all(lambda connection: None)
    if errors:
        return ProbeResult(bootstrap_servers, Health.DEGRADED, "; ".join(errors.values()))
    return ProbeResult(bootstrap_servers, Health.UP)


def probe_metastore(uris: str) -> ProbeResult:
    """Calls `getStatus` of each metastore. Any response counts, such as one that requires Kerberos.

    Args:
        uris: `thrift://host:port`, several joined by commas; clients use the first that responds.
    """
    return _combined(uris, [_probe_thrift(uri.strip()) for uri in uris.split(",") if uri.strip()])


def probe_sql(live: LiveAddresses) -> ProbeResult:
    """Sends an empty request to the SQL server of a running `headrace up`."""
    from pathlib import Path

    path = Path(live.sql_socket)
    try:
        ping(path, TIMEOUT_S)
    except TimeoutError:
        return ProbeResult(live.sql_socket, Health.SILENT, silence_text())
    except (SqlServerUnavailable, OSError) as error:
        # The message repeats the path of the socket; its cause does not.
        cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
        return ProbeResult(live.sql_socket, Health.DOWN, _os_reason(cause))
    return ProbeResult(live.sql_socket, Health.UP)


def probe_pages(url: str) -> ProbeResult:
    """Requests `/healthz` of the console or the gateway of a running `headrace up`."""
    # No verification of the certificate: the part runs on this machine.
    context = ssl._create_unverified_context()  # noqa: S323
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=TIMEOUT_S, context=context) as response:  # noqa: S310  (our own URL)
            return ProbeResult(url, Health.UP, responses=_counted_responses(url, response.read(HEALTH_BYTES_MAX)))
    except urllib.error.HTTPError as error:
        return ProbeResult(url, Health.FAILING, f"responds with status {error.code}")
    except urllib.error.URLError as error:
        cause = error.reason if isinstance(error.reason, Exception) else error
    except (OSError, http.client.HTTPException) as error:
        cause = error
    if isinstance(cause, TimeoutError):
        return ProbeResult(url, Health.SILENT, silence_text())
    return ProbeResult(url, Health.DOWN, _os_reason(cause))


def _counted_responses(url: str, body: bytes) -> dict[str, ResponseCounts]:
    try:
        document = json.loads(body)
        return {url: ResponseCounts(int(document["responses"]), int(document["server_errors"]))}
    except (ValueError, TypeError, KeyError):  # the part is of another release
        return {}


def _probe_thrift(uri: str) -> ProbeResult:
    request = struct.pack(">Ii", THRIFT_CALL, len(STATUS_METHOD)) + STATUS_METHOD + struct.pack(">iB", 1, 0)
    try:
        parts = urlsplit(uri)
        address = parts.hostname or "", parts.port or 0
        connection = socket.create_connection(address, TIMEOUT_S)
    except (OSError, ValueError) as error:  # ValueError: the host or port is malformed
        return ProbeResult(uri, Health.DOWN, _os_reason(error))
    with connection:
        try:
            connection.sendall(request)
            answers = bool(connection.recv(4))
        except TimeoutError:
            return ProbeResult(uri, Health.SILENT, silence_text())
        except OSError as error:
            return ProbeResult(uri, Health.FAILING, _os_reason(error))
    return (
        ProbeResult(uri, Health.UP)
        if answers
        else ProbeResult(uri, Health.FAILING, "closes the connection without a response")
    )


def _combined(address: str, results: Iterable[ProbeResult]) -> ProbeResult:
    """Returns one result for equivalent servers: the only one's; else `degraded` if some are up, else the first's."""
    found = list(results)
    failed = [one for one in found if one.health != Health.UP]
    if not failed:
        return ProbeResult(address, Health.UP)
    reasons = "; ".join(f"{one.address}: {one.reason}" if len(found) > 1 else one.reason for one in failed)
    health = Health.DEGRADED if len(failed) < len(found) else failed[0].health
    return ProbeResult(address, health, reasons, all(one.lacks_database for one in failed))


def _reachable(host: str, port: int) -> str:
    """Returns "" if a connection to the address can be opened, else the reason."""
    try:
        with contextlib.closing(socket.create_connection((host, port), TIMEOUT_S)):
            return ""
    except OSError as error:
        return _os_reason(error)


def _silence_or(reason: str) -> str:
    return silence_text() if "timed out" in reason else reason


def _os_reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refuses connections"
    if isinstance(error, TimeoutError):
        return f"no connection within {TIMEOUT_S:g} s"
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
