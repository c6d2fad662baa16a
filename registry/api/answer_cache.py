"""Answers as they were sent, each with what it rests on; whoever gives one again asks `Leases` whether it holds.

An answer is given again only to who has the rights of the one that it was made for: those are part of each key, and the
cache puts them there itself, so that nobody can forget to.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from headrace.registry.api.hooks import Principal
from headrace.registry.storage.footing import Footing

BYTES_MAX: Final = 128 * 1024 * 1024  # of all that is kept: some 60,000 schemas of usual size
ENTRY_BYTES: Final = 1200  # what an entry takes beside its body: key, headers, footing and their objects


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of the application, with headers as ASGI has them.

    `route` is the rule that the path matched, `footing` what the answer rests on or None when it is not to be kept.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    route: str = ""
    principal: Principal | None = None
    footing: Footing | None = None


class AnswerCache:
    """Belongs to one event loop; the least recently used answer goes first."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._answers: OrderedDict[Hashable, Answer] = OrderedDict()
        self._bytes = 0
        self._bytes_max = bytes_max

    def get(self, question: Hashable, principal: Principal) -> Answer | None:
        """What somebody with the principal's rights was answered to that question."""
        key = question, principal.key
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, question: Hashable, answer: Answer) -> None:
        """Keeps an answer for those with the rights of whom the application has answered, if it is known who that is.

        Whom is found out by it, or may have changed since the request came.
        """
        if answer.principal is None or answer.footing is None:
            return
        self.drop(question, answer.principal)
        self._answers[question, answer.principal.key] = answer
        self._bytes += _size(answer)
        while self._bytes > self._bytes_max:
            self._bytes -= _size(self._answers.popitem(last=False)[1])

    def drop(self, question: Hashable, principal: Principal) -> None:
        dropped = self._answers.pop((question, principal.key), None)
        if dropped is not None:
            self._bytes -= _size(dropped)


def _size(answer: Answer) -> int:
    return len(answer.body) + ENTRY_BYTES
