"""Exceptions that arise while the Kafka client gives out messages, kept until those messages are stored.

A callback that raises makes `consume` and `poll` of confluent-kafka raise instead of returning, and what they had
taken from their queue is gone: later messages of the same partitions would be committed over it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from headrace.clients.kafka_client import error_text

logger = logging.getLogger(__name__)


def logged(function: Callable[..., object], name: str) -> Callable[..., None]:
    """A function of the same arguments that raises nothing, where nobody is there whom it concerns."""

    def called(*args: Any) -> None:
        try:
            function(*args)
        except BaseException:  # also `sys.exit`, which would end a thread that others rely on
            logger.exception("%s failed", name)

    return called


class Guarded:
    """Used by the thread of one consumer. The first exception is kept, further ones are logged."""

    def __init__(self) -> None:
        self._kept: BaseException | None = None

    def callback(self, function: Callable[..., object]) -> Callable[..., None]:
        """A function of the same arguments that raises nothing."""

        def guarded(*args: Any) -> None:
            try:
                function(*args)
            except BaseException as error:
                self.keep(error)

        return guarded

    def keep(self, error: BaseException) -> None:
        if self._kept is None:
            self._kept = error
        else:
            logger.warning("failed besides error=%s", error_text(error))

    def raise_kept(self) -> None:
        """
        Raises:
            BaseException: what was kept, once.
        """
        error, self._kept = self._kept, None
        if error is not None:
            raise error
