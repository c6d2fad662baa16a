"""Computes all interleavings of a few processes. Each process runs the loader's own code; one step is one external
call, such as reading a file.

A process is deterministic: its next call depends only on the results of its earlier calls. So these results identify
the position of a process. To continue from a position, the process is run again from the beginning with these results,
up to the next call. This is done once for all interleavings in which the process gets the same results. The world,
which the processes share, is an immutable value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar


class Call(NamedTuple):
    name: str
    arguments: tuple[Any, ...]


class World(Hashable, Protocol):
    """The state that the processes share, such as the files of a commit log."""

    def done(self, call: Call) -> tuple[Any, Hashable]:
        """Carries out a call. Returns the world after it, and the result of the call."""
        ...

    def is_settled(self, call: Call) -> bool:
        """Returns whether the call has no side effect and its result cannot change any more. It is then made at once,
        because its order relative to other calls does not matter."""
        ...


MakeCall = Callable[..., Any]
"""`make_call(name, *arguments)` makes an external call and returns its result."""

Stage = Callable[[MakeCall, Any], Hashable]
"""A part of a process. It gets the value that the previous part returned, as its only input, and returns its own value.
"""

W = TypeVar("W", bound=World)


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    stages: tuple[Stage, ...]


class _ResultUnknown(BaseException):
    """Stops the run of a process at its first call whose result is not known yet."""


@dataclass(eq=False, slots=True)
class Moment:
    """A position of a process, at which it is about to make `call`; None at its end.

    Attributes:
        stage: index of its current stage.
        carried: the value of the previous stage.
        results: the results of the calls in this stage so far.
        left: the value of the last stage, at the end of the process.
        error: the exception that ended the process.
        later: the next position, by the result of `call`.
    """

    process: Process
    stage: int
    carried: Hashable
    results: tuple[Hashable, ...]
    call: Call | None = None
    left: Hashable = None
    error: Exception | None = None
    later: dict[Hashable, Moment] = field(default_factory=dict)


class Interleavings:
    """Runs processes, and caches the positions that they have reached."""

    def __init__(self) -> None:
        self._positions: dict[Hashable, Moment] = {}

    def begin(self, process: Process, stage: int = 0, carried: Hashable = None) -> Moment:
        """Returns the position of a process at the first call of a stage, or at its end if it makes no more calls."""
        key = (process, stage, carried)
        if key not in self._positions:
            if stage == len(process.stages):
                moment = Moment(process, stage, None, (), left=carried)
            else:
                moment = self._run(Moment(process, stage, carried, ()))
            self._positions[key] = moment
        return self._positions[key]

    def after(self, moment: Moment, result: Hashable) -> Moment:
        if result not in moment.later:
            following = Moment(moment.process, moment.stage, moment.carried, (*moment.results, result))
            moment.later[result] = self._run(following)
        return moment.later[result]

    def _run(self, moment: Moment) -> Moment:
        given = iter(moment.results)

        def make_call(name: str, *arguments: Any) -> Any:
            if moment.call is None:
                for result in given:
                    return result
                moment.call = Call(name, arguments)
            raise _ResultUnknown

        try:
            left = moment.process.stages[moment.stage](make_call, moment.carried)
        except _ResultUnknown:
            return moment
        except Exception as error:
            return dataclasses.replace(moment, error=error)
        return self.begin(moment.process, moment.stage + 1, left)

    def run_alone(self, world: W, process: Process) -> W:
        """Runs a process without any other, and returns the world after it.

        Raises:
            Exception: raised by the process.
        """
        moment = self.begin(process)
        while moment.call is not None:
            world, result = world.done(moment.call)
            moment = self.after(moment, result)
        if moment.error is not None:
            raise moment.error
        return world

    def steps(self, first: W, processes: Sequence[Process]) -> Iterator[Step]:
        """Yields every step that occurs in any interleaving of the processes. A state of world and positions that is
        reached in several ways is continued once."""
        state = self._settled(first, tuple(self.begin(process) for process in processes))
        seen, waiting = {state}, [state]
        while waiting:
            world, moments = waiting.pop()
            for at, moment in enumerate(moments):
                if moment.call is None:
                    continue
                changed, result = world.done(moment.call)
                after = self._settled(changed, (*moments[:at], self.after(moment, result), *moments[at + 1 :]))
                yield Step(world, moment, after[0], after[1])
                if after not in seen:
                    seen.add(after)
                    waiting.append(after)

    def _settled(self, world: W, moments: tuple[Moment, ...]) -> tuple[W, tuple[Moment, ...]]:
        found = []
        for moment in moments:
            while moment.call is not None and world.is_settled(moment.call):
                moment = self.after(moment, world.done(moment.call)[1])
            found.append(moment)
        return world, tuple(found)


class Step(NamedTuple):
    """One call in an interleaving.

    Attributes:
        before: the world before the call.
        moment: the position at which the process made it.
        after: the world after the call.
        moments: the positions of all processes after the call.
    """

    before: Any
    moment: Moment
    after: Any
    moments: tuple[Moment, ...]
