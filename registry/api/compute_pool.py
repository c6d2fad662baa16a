"""Processes for long computations: compatibility checks, and comparisons of registrations.

A computing thread delays the event loop, which then has to wait for the interpreter lock. Measured: three threads that
compare large schemas delay cached responses to 24 ms, at times 300 ms; eight threads to 100 ms, at times 440 ms.
Each process has an application on the same database, and a lower priority than its worker. The processes start at first
use, which takes a second or more. A small check does not wait for the start. A large one does, because in the worker it
would take the CPU from the starting processes.

The processes write nothing: the worker holds the locks of registrations.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

from flask import Flask

from headrace.registry.api.client_queues import ClientQueueFull
from headrace.registry.api.response_cache import AppResponse
from headrace.registry.api.services import services_of
from headrace.registry.api.wsgi_call import WsgiApplication, call
from headrace.registry.service.compatibility import Comparison, ComparisonResult

logger = logging.getLogger(__name__)
A = TypeVar("A")
T = TypeVar("T")

NICENESS: Final = 10
PARENT_POLL_S: Final = 0.5  # how often a process checks that its worker is alive


class ComputePool:
    """A pool of processes for long computations, such as compatibility checks, outside of the process that serves
    requests. Belongs to one event loop.

    Args:
        make_application: creates the WSGI application; picklable, called once in each process.
        processes: maximum number.
    """

    def __init__(self, make_application: Callable[[], WsgiApplication], processes: int) -> None:
        self._make_application = make_application
        self._processes = processes
        self._pool = self._new_pool()
        self._is_closed = False
        self._starting: asyncio.Future[None] | None = None

    def _new_pool(self) -> ProcessPoolExecutor:
        # Spawned, because forking a process with threads is unsafe.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(
            self._processes, context, initializer=_initialize, initargs=(self._make_application, os.getpid())
        )

    def is_ready(self) -> bool:
        """Whether all processes of the pool have started. Starts them if necessary, without waiting."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().run_in_executor(None, _start, self._pool, self._processes)
        if not self._starting.done():
            return False
        failure = self._starting.exception()
        if failure is not None:
            logger.error(
                "compute_process_not_started action=running small checks in the worker until the next attempt cause=%r",
                failure,
            )
            self._pool, self._starting = self._new_pool(), None
        return failure is None

    async def respond(self, environ: dict[str, Any]) -> AppResponse:
        """Runs the WSGI application in a process of the pool, for the request in `environ`, and returns the response.
        Waits for the processes to start if necessary.

        Raises:
            ClientQueueFull: the pool is closed.
            BrokenProcessPool: a process of the pool died. The pool replaces all its processes.
        """
        return await self._run(_respond, {key: value for key, value in environ.items() if key != "wsgi.errors"})

    async def run_comparison(self, comparison: Comparison) -> ComparisonResult | None:
        """Compares schemas by `Compatibility.run_comparison` in a process of the pool.

        Raises:
            ClientQueueFull: the pool is closed.
            BrokenProcessPool: a process of the pool died. The pool replaces all its processes.
        """
        return await self._run(_run_comparison, comparison)

    async def _run(self, work: Callable[[A], T], argument: A) -> T:
        if self._is_closed:
            raise ClientQueueFull
        pool = self._pool
        try:
            # submit() may start a process, so it runs in a thread.
            future = await asyncio.get_running_loop().run_in_executor(None, pool.submit, work, argument)
            return await asyncio.wrap_future(future)
        except BrokenProcessPool:
            if self._pool is pool:
                logger.error("compute_process_died possible_cause=lack of memory action=starting new processes")
                self._pool, self._starting = self._new_pool(), None
            raise

    def close(self) -> None:
        """Stops the processes after their running computations, and cancels waiting ones."""
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)


def _start(pool: ProcessPoolExecutor, processes: int) -> None:
    for started in [pool.submit(os.getpid) for _ in range(processes)]:
        started.result()


_application: WsgiApplication | None = None


def _initialize(make_application: Callable[[], WsgiApplication], parent: int) -> None:
    global _application
    # Ctrl-C on a terminal reaches every process, but the worker ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    _application = make_application()
    os.nice(NICENESS)  # after the start, which would otherwise wait for all other computations


def _respond(environ: dict[str, Any]) -> AppResponse:
    assert _application is not None
    return call(_application, {**environ, "wsgi.errors": sys.stderr})


def _run_comparison(comparison: Comparison) -> ComparisonResult | None:
    assert isinstance(_application, Flask)
    return services_of(_application).compatibility.run_comparison(comparison)


def _exit_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
