"""Every interleaving of a few processes, each of them the loader's own code, which asks the world one thing at a time.

What a process does next must follow from the answers it has had, and from nothing else. So where it stands *is* those
answers: to go on from there it is run again from its beginning with them, up to the first call after them. That
happens once for all interleavings in which it has had the same answers. The world is a value.
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
    """What the processes share."""

    def done(self, call: Call) -> tuple[Any, Hashable]:
        """The world after a call, and the answer."""
        ...

    def is_settled(self, call: Call) -> bool:
        """Whether the call changes nothing, and nothing that anybody may yet do changes its answer: then it does not
        matter when it is made."""
        ...


Ask = Callable[..., Any]
"""`ask(name, *arguments)` is the answer of the world."""

Stage = Callable[[Ask, Any], Hashable]
"""A part of a process, from what the part before it left, which is all that it may know, to what it leaves."""

W = TypeVar("W", bound=World)


@dataclass(frozen=True, slots=True)
class Process:
    name: str
    stages: tuple[Stage, ...]


class _Unanswered(BaseException):
    """The process is as far as its answers go."""


@dataclass(eq=False, slots=True)
class Moment:
    """Where a process stands: at `call`, or, where that is None, at its end, with what its last stage left.

    `error` is what it ended with, for processes that should not.
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
    """Remembers every moment of every process that it has come to."""

    def __init__(self) -> None:
        self._begun: dict[Hashable, Moment] = {}

    def begin(self, process: Process, stage: int = 0, carried: Hashable = None) -> Moment:
        """The first call of a stage, or the end."""
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
        """The world after all of a process that nobody disturbs.

        Raises:
            Exception: whatever it ends with.
        """
        moment = self.begin(process)
        while moment.call is not None:
            world, answer = world.done(moment.call)
            moment = self.after(moment, answer)
        if moment.error is not None:
            raise moment.error
        return world

    def steps(self, first: W, processes: Sequence[Process]) -> Iterator[Step]:
        """Every step that any interleaving takes; each state is gone on from once."""
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
    """The process at `moment` made its call; `moments` is where everybody stands then."""

    before: Any
    moment: Moment
    after: Any
    moments: tuple[Moment, ...]
