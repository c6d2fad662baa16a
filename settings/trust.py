"""Which credentials a settings file of the working folder, which may be anybody's, has no say about.

In CI that file is the pull request's. One that names a server would have the job's password sent wherever it likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from headrace.settings.sections import Settings


def credentials_from_elsewhere(settings: Settings, keys: Iterable[str]) -> list[str]:
    """Of the settings `section.name` those that are set, but not by the working folder's own file.

    One whose name ends in `_file` is that only where the file that it names lies in the folder itself.
    """
    return [key for key in keys if _value(settings, key) and not _is_of_folder(settings, key)]


def _is_of_folder(settings: Settings, key: str) -> bool:
    if key not in settings.of_working_folder:
        return False
    return not key.endswith("_file") or Path(_value(settings, key)).expanduser().resolve().is_relative_to(Path.cwd())


def _value(settings: Settings, key: str) -> str:
    section, _, name = key.partition(".")
    value: str = getattr(getattr(settings, section), name)
    return value
