"""Runs many cases of one rule in one test. All cases run, and the failed ones are reported together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

LABEL_CHARS_MAX = 200


@contextmanager
def all_cases() -> Iterator[Callable[[object], AbstractContextManager[None]]]:
    """Yields a context manager for one case; raises an ExceptionGroup of the failed cases after the last one.

    with all_cases() as case:
        for version in range(13):
            with case(version):
                assert decode(encode(version)) == version
    """
    failed: list[tuple[str, Exception]] = []

    @contextmanager
    def case(name: object) -> Iterator[None]:
        try:
            yield
        except BaseExceptionGroup as group:  # schemathesis: its class is no Exception, though its members are
            if not all(isinstance(member, Exception) for member in group.exceptions):
                raise
            note(name, ExceptionGroup(group.message, group.exceptions).with_traceback(group.__traceback__))
        except Exception as error:
            note(name, error)

    def note(name: object, error: Exception) -> None:
        label = str(name)[:LABEL_CHARS_MAX]
        error.add_note(f"failed case: {label}")
        failed.append((label, error))

    yield case
    if failed:
        raise ExceptionGroup(
            f"{len(failed)} failed cases: {', '.join(label for label, _ in failed)}", [error for _, error in failed]
        )
