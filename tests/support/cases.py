"""Many cases of one rule in one test: all cases run, and the failed ones are reported together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager


@contextmanager
def all_cases() -> Iterator[Callable[[object], AbstractContextManager[None]]]:
    """Yields a context manager for one case; raises an ExceptionGroup of the failed cases after the last one.

    with all_cases() as case:
        for version in range(13):
            with case(version):
                assert decode(encode(version)) == version
    """
    failed: dict[str, Exception] = {}

    @contextmanager
    def case(name: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            error.add_note(f"failed case: {name}")
            failed[str(name)] = error

    yield case
    if failed:
        raise ExceptionGroup(f"{len(failed)} failed cases: {', '.join(failed)}", list(failed.values()))
