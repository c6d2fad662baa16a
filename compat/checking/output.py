"""Where an outcome goes: standard output in one format, files in others, what could not be judged to standard error."""

from __future__ import annotations

import io
import os
import posixpath
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from headrace.compat.formats import FORMATS, render
from headrace.compat.formats.text import COLOURED, PLAIN, outcome_text
from headrace.compat.outcome import Outcome
from headrace.settings import SettingsError

READ_FROM_THE_TOP = frozenset({"github", "gitlab", "sarif"})
"""Formats whose files are looked for from the top of the repository, wherever in it the command ran."""


@dataclass(frozen=True, slots=True)
class Output:
    """A file that gets a format."""

    format: str
    path: str


def parse_outputs(texts: Sequence[str]) -> tuple[Output, ...]:
    """`FORMAT=PATH` of each.

    Raises:
        SettingsError: one of them is none.
    """
    outputs = []
    for text in texts:
        name, equals, path = text.partition("=")
        if name not in FORMATS or not equals or not path:
            raise SettingsError(f"--output: expected FORMAT=PATH with one of {', '.join(FORMATS)}, found {text!r}")
        outputs.append(Output(name, path))
    return tuple(outputs)


def write_outputs(outcome: Outcome, outputs: Sequence[Output]) -> None:
    """Writes the files, and the directories they lie in.

    Raises:
        SettingsError: one cannot be written.
    """
    for output in outputs:
        path = Path(output.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file name need not be valid text; escaped, it is still there to read.
            path.write_text(_rendered(output.format, outcome), encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise SettingsError(f"--output: {output.path} cannot be written: {error.strerror}") from None


def print_outcome(outcome: Outcome, name: str, *, verbose: bool = False, quiet: bool = False) -> None:
    """The outcome on standard output, and one line on standard error for each schema that could not be judged."""
    let_everything_through(sys.stdout)
    let_everything_through(sys.stderr)
    if name == "text":
        style = COLOURED if wants_colour(sys.stdout) else PLAIN
        text = outcome_text(outcome, style, verbose=verbose, quiet=quiet)
    else:
        text = _rendered(name, outcome)
    sys.stdout.write(text)
    sys.stdout.flush()
    for failure in outcome.failures:
        print(failure.text(), file=sys.stderr)


def _rendered(name: str, outcome: Outcome) -> str:
    return render(name, _from_the_top(outcome) if name in READ_FROM_THE_TOP else outcome)


def _from_the_top(outcome: Outcome) -> Outcome:
    """The same with files called by their place in the repository, where there is one around the working directory."""
    directory = Path.cwd()
    top = next((above for above in (directory, *directory.parents) if (above / ".git").exists()), directory)
    place = directory.relative_to(top).as_posix()
    if place == ".":
        return outcome

    def in_top(file: str) -> str:
        return posixpath.normpath(posixpath.join(place, file))

    return replace(
        outcome,
        # A schema that was deleted has its place too; of a failure it may also be the name of a baseline.
        checked=tuple(replace(item, file=in_top(item.file)) for item in outcome.checked),
        failures=tuple(
            replace(failure, file=in_top(failure.file)) if os.path.lexists(failure.file) else failure
            for failure in outcome.failures
        ),
    )


def let_everything_through(stream: TextIO) -> None:
    """A file name need not be valid text, and not every terminal has every character; neither may end the check."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
