"""Processes for what computes for long, beside the one that answers: checks, and what registrations compare.

A thread that computes makes the event loop wait for the interpreter each time that it has something to do: three that
compared large schemas made kept answers take 24 ms and now and then 300, eight 100 ms and now and then 440. These
processes have an application each, on the same database, and are nicer to others than the worker that they belong to.
They are started when they are first needed, which takes a second or more. A small check is not to wait for that; a
large one is: computed in the worker meanwhile, large ones take the processor from the very processes that are starting.

Nothing is written by them: the turns of registrations are the worker's.
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

from headrace.registry.api.answer_cache import Answer
from headrace.registry.api.fair_lane import LaneFull
from headrace.registry.api.services import services_of
from headrace.registry.api.wsgi_call import WsgiApplication, call
from headrace.registry.service.compatibility import Comparison, WorkedOut

logger = logging.getLogger(__name__)
A = TypeVar("A")
T = TypeVar("T")

NICENESS: Final = 10
PARENT_POLL_S: Final = 0.5  # how often one looks whether the worker that it belongs to is there


class Checkers:
    """Belongs to one event loop.

    Args:
        make_application: can be pickled; called once in each process.
        processes: at most.
    """

    def __init__(self, make_application: Callable[[], WsgiApplication], processes: int) -> None:
        self._make_application = make_application
        self._processes = processes
        self._pool = self._new_pool()
        self._is_closed = False
        self._starting: asyncio.Future[None] | None = None

    def _new_pool(self) -> ProcessPoolExecutor:
        # Not forked: this process has threads.
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(
            self._processes, context, initializer=_begin, initargs=(self._make_application, os.getpid())
        )

    def are_ready(self) -> bool:
        """Whether there are processes, which else are started now."""
        if self._starting is None:
            self._starting = asyncio.get_running_loop().run_in_executor(None, _start, self._pool, self._processes)
        if not self._starting.done():
            return False
        failure = self._starting.exception()
        if failure is not None:
            logger.error("no process that checks schemas could be started: cause=%r", failure)
            self._pool, self._starting = self._new_pool(), None
        return failure is None

    async def answer(self, environ: dict[str, Any]) -> Answer:
        """What the application answers to a WSGI environ, which waits for the processes to start where it must.

        Raises:
            LaneFull: this has been closed.
            BrokenProcessPool: a process has died; others take their place.
        """
        return await self._done(_answer, {key: value for key, value in environ.items() if key != "wsgi.errors"})

    async def work_out(self, comparison: Comparison) -> WorkedOut | None:
        """What `Compatibility.work_out` returns there; raises what `answer` does."""
        return await self._done(_work_out, comparison)

    async def _done(self, work: Callable[[A], T], given: A) -> T:
        if self._is_closed:
            raise LaneFull
        pool = self._pool
        try:
            # In a thread, since it may start a process.
            future = await asyncio.get_running_loop().run_in_executor(None, pool.submit, work, given)
            return await asyncio.wrap_future(future)
        except BrokenProcessPool:
            if self._pool is pool:
                logger.error("a process that checks schemas has died")
                self._pool, self._starting = self._new_pool(), None
            raise

    def close(self) -> None:
        """Waits for those that are computing."""
        self._is_closed = True
        self._pool.shutdown(cancel_futures=True)


def _start(pool: ProcessPoolExecutor, processes: int) -> None:
    for begun in [pool.submit(os.getpid) for _ in range(processes)]:
        begun.result()


_application: WsgiApplication | None = None


def _begin(make_application: Callable[[], WsgiApplication], parent: int) -> None:
    global _application
    # Ctrl-C on a terminal reaches every process; the worker ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    _application = make_application()
    os.nice(NICENESS)  # not before: who waits for it to start is not to wait for all that computes


def _answer(environ: dict[str, Any]) -> Answer:
    assert _application is not None
    return call(_application, {**environ, "wsgi.errors": sys.stderr})


def _work_out(comparison: Comparison) -> WorkedOut | None:
    assert isinstance(_application, Flask)
    return services_of(_application).compatibility.work_out(comparison)


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os._exit(1)
