"""Runs tasks that wait for a server in parallel, in an order that respects their dependencies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Protocol, TypeVar

PARALLEL_REQUESTS_MAX: Final = 8  # a client's number of connections; the registry has other clients to serve


class OrderedTask(Protocol):
    """A task that changes the resource `written` and depends on the resources `read`."""

    @property
    def written(self) -> str: ...

    @property
    def read(self) -> frozenset[str]: ...


Task = TypeVar("Task", bound=OrderedTask)


def predecessors(tasks: Sequence[OrderedTask]) -> list[set[int]]:
    """Returns, for each task, the indices of the earlier tasks that must be finished before it starts.

    A task waits for earlier tasks that change a resource which it reads or changes, and for those that read the
    resource which it changes.
    """
    changed: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    found = []
    for position, task in enumerate(tasks):
        needed = {changed[name] for name in (task.written, *task.read) if name in changed}
        needed.update(readers.pop(task.written, ()))
        found.append(needed)
        changed[task.written] = position
        for name in task.read - {task.written}:
            readers.setdefault(name, []).append(position)
    return found


def run_parallel(tasks: Sequence[Task], run: Callable[[Task], None], progress: Callable[[int], None]) -> None:
    """Calls `run` with each task, with as many tasks in parallel as their order allows, at most
    `PARALLEL_REQUESTS_MAX`. `progress` receives the number of finished tasks.

    An exception of `run` stops the run: running tasks are awaited and no further task is started.
    """
    missing = predecessors(tasks)
    dependents: list[list[int]] = [[] for _ in tasks]
    for position, needed in enumerate(missing):
        for earlier in needed:
            dependents[earlier].append(position)
    ready = [position for position in range(len(tasks)) if not missing[position]]
    ready.reverse()
    running: dict[Future[None], int] = {}
    done = 0
    with ThreadPoolExecutor(PARALLEL_REQUESTS_MAX) as pool:
        while ready or running:
            while ready and len(running) < PARALLEL_REQUESTS_MAX:
                position = ready.pop()
                running[pool.submit(run, tasks[position])] = position
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                position = running.pop(future)
                future.result()
                done += 1
                for dependent in dependents[position]:
                    missing[dependent].discard(position)
                    if not missing[dependent]:
                        ready.append(dependent)
            progress(done)
