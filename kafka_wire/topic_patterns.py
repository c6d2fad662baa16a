"""Patterns of topic names, as in a shell: `*` and `?` match any characters and one character, `[ab]` one of several.

Topic names consist of letters, digits, dots, dashes and underscores, so a name is a pattern that matches only itself.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable

SIMILARITY_MIN = 0.5  # ratio of difflib; a misspelt name has more


def matching_topics(pattern: str, names: Iterable[str]) -> list[str]:
    """Returns the names that match a pattern, in the given order."""
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]


def is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[")


def similar_topic(pattern: str, names: Iterable[str]) -> str:
    """Returns the name that is most similar to a misspelt name or pattern; "" if none is similar."""
    return next(iter(difflib.get_close_matches(pattern, list(names), n=1, cutoff=SIMILARITY_MIN)), "")
