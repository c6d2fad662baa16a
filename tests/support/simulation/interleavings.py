"""All interleavings of a few processes, each running the loader's own code with one external call at a time.

The next call of a process must depend only on the results of its earlier calls. Its position therefore *is* these
results: to continue, the process is run again from the beginning with them, up to the next call. That happens once for
all interleavings with the same results. The world is an immutable value.
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
    """The state shared by the processes."""

    def done(self, call: Call) -> tuple[Any, Hashable]:
        """Returns the world after a call, and the result."""
        ...

    def is_settled(self, call: Call) -> bool:
        """Whether the call has no side effect and no possible later call changes its result: then its time does not
        matter."""
        ...


Ask = Callable[..., Any]
"""`ask(name, *arguments)` returns the result of an external call."""

Stage = Callable[[Ask, Any], Hashable]
"""A part of a process: from the value returned by the previous part, its only input, to its own value."""

W = TypeVar("W", bound=World)


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    stages: tuple[Stage, ...]


class _Unanswered(BaseException):
    """The process has used all known results."""


@dataclass(eq=False, slots=True)
class Moment:
    """The position of a process: at `call`, or at its end if None, with the value of its last stage.

    `error` is the exception that ended it, for processes that must not fail.
    """

    process: Process
    stage: int
    carried: Hashable
    answers: tuple[Hashable, ...]
    call: Call | None = None
    left: Hashable = None
    error: Exception | None = None
    later: dict[Hashable, Moment] = field(default_factory=dict)


class Interleavings:
    """Caches every reached position of every process."""

    def __init__(self) -> None:
        self._begun: dict[Hashable, Moment] = {}

    def begin(self, process: Process, stage: int = 0, carried: Hashable = None) -> Moment:
        """Returns the first call of a stage, or the end."""
        key = (process, stage, carried)
        if key not in self._begun:
            if stage == len(process.stages):
                moment = Moment(process, stage, None, (), left=carried)
            else:
                moment = self._run(Moment(process, stage, carried, ()))
            self._begun[key] = moment
        return self._begun[key]

    def after(self, moment: Moment, answer: Hashable) -> Moment:
        if answer not in moment.later:
            following = Moment(moment.process, moment.stage, moment.carried, (*moment.answers, answer))
            moment.later[answer] = self._run(following)
        return moment.later[answer]

    def _run(self, moment: Moment) -> Moment:
        given = iter(moment.answers)

        def ask(name: str, *arguments: Any) -> Any:
            if moment.call is None:
                for answer in given:
                    return answer
                moment.call = Call(name, arguments)
            raise _Unanswered

        try:
            left = moment.process.stages[moment.stage](ask, moment.carried)
        except _Unanswered:
            return moment
        except Exception as error:
            return dataclasses.replace(moment, error=error)
        return self.begin(moment.process, moment.stage + 1, left)

    def alone(self, world: W, process: Process) -> W:
        """Returns the world after a process that runs alone.

        Raises:
            Exception: raised by the process.
        """
        moment = self.begin(process)
        while moment.call is not None:
            world, answer = world.done(moment.call)
            moment = self.after(moment, answer)
        if moment.error is not None:
            raise moment.error
        return world

    def steps(self, first: W, processes: Sequence[Process]) -> Iterator[Step]:
        """Yields every step of any interleaving; each state is continued once."""
        state = self._settled(first, tuple(self.begin(process) for process in processes))
        seen, waiting = {state}, [state]
        while waiting:
            world, moments = waiting.pop()
            for at, moment in enumerate(moments):
                if moment.call is None:
                    continue
                changed, answer = world.done(moment.call)
                after = self._settled(changed, (*moments[:at], self.after(moment, answer), *moments[at + 1 :]))
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
    """The process at `moment` made its call; `moments` are the positions of all processes."""

    before: Any
    moment: Moment
    after: Any
    moments: tuple[Moment, ...]
