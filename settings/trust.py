"""Which credentials a settings file of the working directory, which may be anybody's, has no say about.

In CI that file is the pull request's. One that names a server would have the job's password sent wherever it likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.settings.sections import Settings


def trusted_credentials(settings: Settings, keys: Iterable[str]) -> list[str]:
    """Of the settings `section.name` those that are set, but not by the working directory's own file.

    One whose name ends in `_file` is that only where the file that it names lies in the directory itself.
    """
    return [key for key in keys if _value(settings, key) and not _is_of_directory(settings, key)]


def _is_of_directory(settings: Settings, key: str) -> bool:
    if key not in settings.keys_from_working_directory:
        return False
    return not key.endswith("_file") or Path(_value(settings, key)).expanduser().resolve().is_relative_to(Path.cwd())


def _value(settings: Settings, key: str) -> str:
    section, _, name = key.partition(".")
    value: str = getattr(getattr(settings, section), name)
    return value
