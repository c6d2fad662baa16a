"""Which server is asked, and when a call is made again.

The servers are equal, their order is preference: the first is asked until it fails, then the next, and the first again
after `DOWN_S`. Moving on to a server that has not failed in this call costs no pause; coming back to one that has does,
a random one between nothing and a bound that doubles ("full jitter"), so that clients that failed together do not
come back together.

| what happened | made again |
|---|---|
| no connection | always |
| 408, 429 | always: the server says that it did nothing |
| no answer on a connection, other 5xx | only what may be repeated, since the server may have done it |
| certificates not trusted | never at the same server |
| any other answer, redirects too | never |

What may be repeated: questions, and changes that end in the same state and with the same answer, such as registering a
schema. Deletions are not: a second one finds nothing to delete, or deletes what was registered in between.
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
from headrace.registry.client.connections import Answer, Connections, NoAnswer
from headrace.registry.client.proxies import proxy_for
from headrace.registry.errors import RegistryUnavailable

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 7  # of one call: some 3.5 seconds of pauses, in which a registry restarts; a dead one is soon reported
TIMEOUTS_MAX = 3  # of one call: after so many timeouts' time no attempt begins, since a silent server is not restarting
PAUSE_FIRST_S = 0.2
PAUSE_MAX_S = 2.0  # also of a pause that the server asks for
DOWN_S = 30.0  # how long a server that failed is asked only if no other is left
CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
NOT_DONE_STATUSES: Final = frozenset({408, 429})
LASTING_STATUSES: Final = frozenset({501, 505})  # of those from 500 on


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the API. `path` is percent-encoded; `is_repeatable` as the module says."""

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
    ) -> Call:
        """`is_repeatable` None: all but deletions."""
        return cls(
            method,
            path,
            query or {},
            None if body is None else json.dumps(body).encode(),
            method != "DELETE" if is_repeatable is None else is_repeatable,
        )


def is_passing(status: int) -> bool:
    """Whether an answer may be another one soon."""
    return status in NOT_DONE_STATUSES or (status >= 500 and status not in LASTING_STATUSES)


def pause_s(failures: int, asked_s: float | None, chance: float) -> float:
    """Seconds before a server is asked again that has failed `failures` times in this call.

    Args:
        asked_s: what the server asked for.
        chance: a random number in [0, 1).
    """
    bound_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** (failures - 1))
    return max(bound_s * chance, min(PAUSE_MAX_S, asked_s or 0.0))


class _Tries:
    """What has gone wrong in one call, by server."""

    def __init__(self) -> None:
        self.failures: Counter[Server] = Counter()
        self.reasons: dict[Server, str] = {}
        self.asked_s: dict[Server, float | None] = {}
        self.lasting: set[Server] = set()

    def note(self, server: Server, reason: str, asked_s: float | None = None) -> None:
        self.failures[server] += 1
        self.reasons[server] = reason
        self.asked_s[server] = asked_s

    def text(self) -> str:
        if len(self.reasons) == 1:
            return next(iter(self.reasons.values()))
        return "; ".join(f"{server.url}: {reason}" for server, reason in self.reasons.items())


class Transport:
    """The servers of one client.

    Args:
        servers: at least one.
        environment: names proxies; None: that of this process.
        sleep, clock, chance: of the `time` and `random` modules; tests give their own.

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
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.servers = tuple(servers)
        self.url = ",".join(server.url for server in self.servers)
        try:
            context = (tls or Tls()).context() if any(server.is_secure for server in self.servers) else None
        except ValueError as error:
            raise RegistryUnavailable(self.url, str(error)) from error
        variables = os.environ if environment is None else environment
        self._connections = {
            server: Connections(server, context if server.is_secure else None, timeout_s, proxy_for(server, variables))
            for server in self.servers
        }
        self._patience_s = TIMEOUTS_MAX * timeout_s
        self._sleep = sleep
        self._clock = clock
        self._chance = chance
        self._down_until: dict[Server, float] = {}
        for server in self.servers:
            if server.auth is not None and not server.is_secure and not server.is_loopback:
                logger.warning(
                    "credentials_unprotected url=%s reason=%r", server.url, "http is read by everyone between"
                )

    def close(self) -> None:
        """Closes the idle connections; new ones are opened when needed."""
        for connections in self._connections.values():
            connections.close()

    def answer(self, call: Call) -> Answer:
        """The answer to a call, whatever its status.

        Raises:
            RegistryUnavailable: no server gave one.
        """
        tries = _Tries()
        give_up_at = self._clock() + self._patience_s
        for left in reversed(range(ATTEMPTS_MAX + len(self.servers) - 1)):
            server = self._chosen(tries)
            if tries.failures[server]:
                self._sleep(pause_s(tries.failures[server], tries.asked_s.get(server), self._chance()))
            try:
                answer = self._exchange(server, call)
            except NoAnswer as failure:
                self._note_failure(server, call, tries, failure)
                if not left or self._clock() >= give_up_at or len(tries.lasting) == len(self.servers):
                    raise RegistryUnavailable(self.url, tries.text()) from failure
            else:
                if not left or self._clock() >= give_up_at or not _is_again(call, answer.status):
                    return answer
                self._note_refusal(server, tries, answer)
        raise AssertionError("every attempt returns, raises or leads to another")

    def _note_failure(self, server: Server, call: Call, tries: _Tries, failure: NoAnswer) -> None:
        if failure.may_be_done and not call.is_repeatable:
            raise RegistryUnavailable(
                server.url, f"{failure}; what was asked may have been done, so it was not asked again"
            ) from failure
        if failure.is_lasting:
            tries.lasting.add(server)
        tries.note(server, str(failure))
        self._note_down(server, str(failure))

    def _note_refusal(self, server: Server, tries: _Tries, answer: Answer) -> None:
        reason = f"HTTP {answer.status}"
        tries.note(server, reason, answer.retry_after_s)
        if answer.status not in NOT_DONE_STATUSES:
            self._note_down(server, reason)

    def _chosen(self, tries: _Tries) -> Server:
        """The server that failed least in this call, then one that is not held to be down, then the order given."""
        now = self._clock()
        usable = [server for server in self.servers if server not in tries.lasting]
        return min(
            usable, key=lambda server: (tries.failures[server], max(0.0, self._down_until.get(server, 0.0) - now))
        )

    def _note_down(self, server: Server, reason: str) -> None:
        self._down_until[server] = self._clock() + DOWN_S
        if len(self.servers) > 1:
            logger.warning("registry_server_failed url=%s reason=%r", server.url, reason)
        else:
            logger.debug("registry_call_failed url=%s reason=%r", server.url, reason)

    def _exchange(self, server: Server, call: Call) -> Answer:
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


def _is_again(call: Call, status: int) -> bool:
    return is_passing(status) and (call.is_repeatable or status in NOT_DONE_STATUSES)
