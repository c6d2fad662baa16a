"""Serves a lane in a thread of its own, and takes it over again after failures."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from headrace.gateway.sessions.errors import LaneUnavailable
from headrace.gateway.sessions.request import fail
from headrace.kafka_wire.batch_producer import ProducerFenced
from headrace.kafka_wire.errors import KafkaError

logger = logging.getLogger(__name__)

REQUESTS_MAX: Final = 1_000
"""Most requests that the thread takes from the queue at a time."""
QUEUED_MAX: Final = 20_000
"""Most requests in the queue; the bodies count against the gateway's limits, too."""
RETRY_S: Final = 0.2
RETRY_S_MAX: Final = 5.0
FENCED_S: Final = 1.0


class LaneRequest(Protocol):
    """A request to a lane."""

    @property
    def result(self) -> Future[Any]: ...


class ServedLane(Protocol):
    """A lane. All its methods are called in one thread; a `KafkaError` makes it unusable."""

    @property
    def wait_s(self) -> float:
        """How long the thread may wait for requests before `run_due`."""

    def take_over(self) -> None:
        """Takes the lane over from its earlier owner."""

    def serve(self, requests: Sequence[Any]) -> None:
        """Processes requests and resolves their results."""

    def run_due(self) -> None:
        """Does what is due by time."""

    def checkpoint(self) -> None:
        """Stores what the next owner would have to find out otherwise."""

    def close(self) -> None:
        """Closes the connections."""


class LaneThread:
    """A thread that serves a lane until `stop`, and takes it over again after failures.

    Args:
        number: number of the lane.
        lane: creates the lane; called in the thread, with a function that sleeps and raises when the thread stops.
    """

    def __init__(self, number: int, lane: Callable[[Callable[[float], None]], ServedLane]) -> None:
        self.number = number
        self._create = lane
        self._requests: queue.SimpleQueue[LaneRequest | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self.is_serving = False
        self._thread = threading.Thread(target=self._run, name=f"headrace-gateway-lane-{number}", daemon=True)
        self._thread.start()

    def submit(self, request: LaneRequest) -> None:
        """Queues a request.

        Raises:
            LaneUnavailable: the lane is being taken over, or has too many requests.
        """
        if not self.is_serving:
            raise LaneUnavailable(f"lane {self.number} is being taken over")
        if self._requests.qsize() >= QUEUED_MAX:
            raise LaneUnavailable(f"lane {self.number} has {QUEUED_MAX} requests in progress")
        self._requests.put(request)
        if not self.is_serving:
            self._fail_queued()

    def stop(self) -> None:
        """Stops the thread after its current step; it stores a checkpoint."""
        self._stop.set()
        self.is_serving = False
        self._requests.put(None)

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = RETRY_S
        while not self._stop.is_set():
            # A new client: the circuit breaker of the last one may reject a broker that has started again.
            lane = self._create(self._sleep)
            try:
                lane.take_over()
                self.is_serving = not self._stop.is_set()
                pause_s = RETRY_S
                self._serve(lane)
            except _Stopped:
                break
            except ProducerFenced as error:
                logger.warning("lane_lost lane=%d reason=%s", self.number, error)
                pause_s = FENCED_S
            except KafkaError as error:
                logger.warning("lane_failed lane=%d retry_s=%.1f reason=%s", self.number, pause_s, error)
            except Exception:
                logger.exception("lane_failed lane=%d", self.number)
            finally:
                lane.close()
            self.is_serving = False
            self._fail_queued()
            self._stop.wait(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        self.is_serving = False
        self._fail_queued()

    def _serve(self, lane: ServedLane) -> None:
        while not self._stop.is_set():
            requests = self._waiting(lane.wait_s)
            try:
                lane.serve(requests)
                lane.run_due()
            finally:
                for request in requests:
                    fail(request.result, LaneUnavailable(f"lane {self.number} has failed; send the request again"))
        lane.checkpoint()

    def _waiting(self, timeout_s: float) -> list[LaneRequest]:
        found: list[LaneRequest] = []
        try:
            request = self._requests.get(timeout=timeout_s) if timeout_s else self._requests.get_nowait()
            while True:
                if request is not None:
                    found.append(request)
                if len(found) >= REQUESTS_MAX:
                    break
                request = self._requests.get_nowait()
        except queue.Empty:
            pass
        return found

    def _fail_queued(self) -> None:
        for request in self._waiting(0.0):
            fail(request.result, LaneUnavailable(f"lane {self.number} has failed; send the request again"))

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise _Stopped


class _Stopped(Exception):
    """The thread was stopped while it waited."""
