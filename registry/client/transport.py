"""Chooses the server for a request, and retries.

The servers are equivalent and their order is the preference. The client uses the first server until it fails, then the
next, and tries the first again after `DOWN_S`. Switching to a server that has not failed for this request needs no
pause. Returning to a failed one does: a random time between 0 and a bound that doubles ("full jitter"), so that clients
that failed together do not return together.

| result | retried |
|---|---|
| no connection | always |
| 408, 429 | always: the server has not executed the request |
| 501, 505 | never |
| no response on a connection, other 5xx | only repeatable requests, because the server may have executed it |
| certificate not trusted, proxy refuses (4xx) | not with the same server |
| any other response, including redirects | never |

The number of attempts and their total time are limited (`ATTEMPTS_MAX`, `TIMEOUTS_MAX`).

Repeatable requests are reads, and changes that lead to the same state and response when repeated, such as registering a
schema. Deletions are not repeatable: a second one would fail, or delete a version that was registered in between.
"""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from headrace.registry.client.access import Server, Tls
from headrace.registry.client.connections import HttpResponse, RegistryConnections, RequestFailed
from headrace.registry.client.proxies import proxy_for
from headrace.registry.errors import RegistryUnavailable

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 7  # per request: about 3.5 seconds of pauses, enough for a restart, and short for a dead registry
TIMEOUTS_MAX = 3  # timeouts per request, after which no attempt starts; a restarting server refuses connections at once
PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 2.0  # also limits Retry-After
DOWN_S = 30.0  # how long a failed server is used only if all others fail
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
UNPROCESSED_STATUSES: Final = frozenset({408, 429})
PERMANENT_STATUSES: Final = frozenset({501, 505})  # the 5xx statuses that a retry does not change


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request of the API. `path` is percent-encoded. `is_repeatable` is True if executing the request twice leads to
    the same state and response; it is then retried even if the server may have executed it."""

    method: str
    path: str
    query: Mapping[str, str]
    payload: bytes | None
    is_repeatable: bool

    @classmethod
    def of(
        cls,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        is_repeatable: bool | None = None,
    ) -> ApiCall:
        """Creates a request. With `is_repeatable` None every request is repeatable except a deletion.

        Args:
            method: the HTTP method.
            path: percent-encoded.
            query: the parameters after `?`, not encoded.
            body: is sent as JSON; None sends no body.
            is_repeatable: see the class.
        """
        return cls(
            method,
            path,
            query or {},
            None if body is None else json.dumps(body).encode(),
            method != "DELETE" if is_repeatable is None else is_repeatable,
        )


def is_transient(status: int) -> bool:
    """Whether a request that got a response with this HTTP status may succeed when it is sent again."""
    return status in UNPROCESSED_STATUSES or (status >= 500 and status not in PERMANENT_STATUSES)


def pause_s(failures: int, retry_after_s: float | None, random_fraction: float) -> float:
    """Pause in seconds before the next attempt with a server that has failed `failures` times for this request.

    Args:
        retry_after_s: the pause that the server requested; None if it requested none.
        random_fraction: a random number in [0, 1).
    """
    bound_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** (failures - 1))
    return max(bound_s * random_fraction, min(PAUSE_MAX_S, retry_after_s or 0.0))


class _Attempts:
    """The failed attempts of one request, by server."""

    def __init__(self) -> None:
        self.failures: Counter[Server] = Counter()
        self.reasons: dict[Server, str] = {}
        self.retry_after_s: dict[Server, float | None] = {}
        self.permanent: set[Server] = set()

    def record(self, server: Server, reason: str, retry_after_s: float | None = None) -> None:
        self.failures[server] += 1
        self.reasons[server] = reason
        self.retry_after_s[server] = retry_after_s

    def text(self) -> str:
        if len(self.reasons) == 1:
            return next(iter(self.reasons.values()))
        return "; ".join(f"{server.url}: {reason}" for server, reason in self.reasons.items())


class Transport:
    """Sends requests to the servers of one client.

    Args:
        servers: at least one.
        environment: variables that name proxies; None means `os.environ`.
        sleep, clock, random_fraction: replaceable for tests.

    Raises:
        RegistryUnavailable: the TLS files or a proxy cannot be used.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        tls: Tls | None = None,
        timeout_s: float = 10.0,
        environment: Mapping[str, str] | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
        random_fraction: Callable[[], float] = random.random,
    ) -> None:
        self.servers = tuple(servers)
        self.url = ",".join(server.url for server in self.servers)
        try:
            context = (tls or Tls()).context() if any(server.is_secure for server in self.servers) else None
        except ValueError as error:
            raise RegistryUnavailable(self.url, str(error)) from error
        variables = os.environ if environment is None else environment
        self._connections = {
            server: RegistryConnections(
                server, context if server.is_secure else None, timeout_s, proxy_for(server, variables)
            )
            for server in self.servers
        }
        self._time_limit_s = TIMEOUTS_MAX * timeout_s
        self._sleep = sleep
        self._clock = clock
        self._random_fraction = random_fraction
        self._down_until: dict[Server, float] = {}
        for server in self.servers:
            if server.auth is not None and not server.is_secure and not server.is_loopback:
                logger.warning(
                    "credentials_unprotected url=%s reason=%r", server.url, "http transmits them in clear text"
                )

    def close(self) -> None:
        """Closes the idle connections. Requests open new ones."""
        for connections in self._connections.values():
            connections.close()

    def send(self, call: ApiCall) -> HttpResponse:
        """Sends a request, with the retries that the module describes, and returns the last response, whatever its
        status.

        Raises:
            RegistryUnavailable: the last attempt got no response, the request is not repeatable and may have been
                executed, or the bearer token cannot be used.
        """
        attempts = _Attempts()
        give_up_at = self._clock() + self._time_limit_s
        for left in reversed(range(ATTEMPTS_MAX + len(self.servers) - 1)):
            server = self._choose_server(attempts)
            if attempts.failures[server]:
                retry_after_s = attempts.retry_after_s.get(server)
                self._sleep(pause_s(attempts.failures[server], retry_after_s, self._random_fraction()))
            try:
                response = self._exchange(server, call)
            except RequestFailed as failure:
                self._record_failure(server, call, attempts, failure)
                if not left or self._clock() >= give_up_at or len(attempts.permanent) == len(self.servers):
                    raise RegistryUnavailable(self.url, attempts.text()) from failure
            else:
                if not left or self._clock() >= give_up_at or not _is_retried(call, response.status):
                    return response
                self._record_error_response(server, attempts, response)
        raise AssertionError("this line is never reached: the last attempt returns or raises")

    def send_once(self, server: Server, call: ApiCall) -> HttpResponse:
        """Sends a request to one server, without retries, and returns the response, whatever its status.

        Raises:
            RequestFailed: there is no response.
            RegistryUnavailable: the bearer token cannot be used.
        """
        return self._exchange(server, call)

    def _record_failure(self, server: Server, call: ApiCall, attempts: _Attempts, failure: RequestFailed) -> None:
        if failure.may_have_executed and not call.is_repeatable:
            raise RegistryUnavailable(
                server.url, f"{failure}; the server may have executed the request, so it was not repeated"
            ) from failure
        if failure.is_permanent:
            attempts.permanent.add(server)
        attempts.record(server, str(failure))
        self._mark_down(server, str(failure))

    def _record_error_response(self, server: Server, attempts: _Attempts, response: HttpResponse) -> None:
        reason = f"HTTP {response.status}"
        attempts.record(server, reason, response.retry_after_s)
        if response.status not in UNPROCESSED_STATUSES:
            self._mark_down(server, reason)

    def _choose_server(self, attempts: _Attempts) -> Server:
        """Returns the server with the fewest failures for this request. Among equals it prefers servers that have not
        failed within `DOWN_S`, in the order of the list, then the server that failed first.

        Args:
            attempts: the failed attempts of this request. Servers with a failure that a retry does not change are not
                chosen.
        """
        now = self._clock()
        usable = [server for server in self.servers if server not in attempts.permanent]
        return min(
            usable, key=lambda server: (attempts.failures[server], max(0.0, self._down_until.get(server, 0.0) - now))
        )

    def _mark_down(self, server: Server, reason: str) -> None:
        self._down_until[server] = self._clock() + DOWN_S
        if len(self.servers) > 1:
            logger.warning("registry_server_failed url=%s reason=%r", server.url, reason)
        else:
            logger.debug("registry_call_failed url=%s reason=%r", server.url, reason)

    def _exchange(self, server: Server, call: ApiCall) -> HttpResponse:
        headers = {"Accept": CONTENT_TYPE, "Confluent-Accept-Unknown-Properties": "true"}
        if call.payload is not None:
            headers["Content-Type"] = CONTENT_TYPE
        if server.auth is not None:
            try:
                headers["Authorization"] = server.auth.header()
            except ValueError as error:
                raise RegistryUnavailable(server.url, str(error)) from error
        target = server.base_path + call.path + (f"?{urlencode(call.query)}" if call.query else "")
        return self._connections[server].exchange(
            call.method, target, headers, call.payload, is_repeatable=call.is_repeatable
        )


def _is_retried(call: ApiCall, status: int) -> bool:
    return is_transient(status) and (call.is_repeatable or status in UNPROCESSED_STATUSES)
