"""Doing things that wait for a server several at a time, in an order that stays right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, Protocol, TypeVar

PARALLEL_REQUESTS_MAX: Final = 8  # as many connections as a client keeps; a registry has others to serve too


class OrderedTask(Protocol):
    """Something to do that changes `written` and rests on `read`: names of whatever things."""

    @property
    def written(self) -> str: ...

    @property
    def read(self) -> frozenset[str]: ...


Task = TypeVar("Task", bound=OrderedTask)


def predecessors(tasks: Sequence[OrderedTask]) -> list[set[int]]:
    """For each task the positions of those before it that must be done first.

    A task waits for the earlier ones that change what it reads or changes, and for those that read what it changes.
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


def run_parallel(tasks: Sequence[Task], do: Callable[[Task], None], progress: Callable[[int], None]) -> None:
    """Does all tasks, as many at once as their order allows; `progress` is told how many are done.

    What `do` raises ends it: nothing more is begun, what is under way is waited for.
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
                running[pool.submit(do, tasks[position])] = position
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                position = running.pop(future)
                future.result()
                done += 1
                for dependent in dependents[position]:
                    missing[dependent].discard(position)
                    if not missing[dependent]:
                        ready.append(dependent)
            progress(done)
