"""Derives the subject under which a schema file is registered.

The serializers have three of the strategies: by topic (`orders-value`), by record (`shop.Order`), by both
(`orders-shop.Order`). The fourth is the file name without its suffix. A rule for matching paths takes precedence over
the strategy. Names of files and directories are percent-decoded, because `schema download` encodes them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType

from headrace.compat.errors import NoSubject
from headrace.compat.file_names import decode_subject

SUFFIXES = (".avsc", ".json")
"""Suffixes of schema files, in any case; the rest of the file name is the topic or subject."""

TOPIC_KINDS = ("-key", "-value")

REMEDY = "set the subject of this file with --subject or compat.subjects"


@dataclass(frozen=True, slots=True)
class SubjectSource:
    """Input of a naming strategy: the path of a schema file, and the full name of its schema (`record`), "" if it has
    none."""

    path: str
    record: str = ""

    @property
    def stem(self) -> str:
        """Name of the schema file without its suffix, percent-decoded."""
        return self._stem_and_directory[0]

    @property
    def topic(self) -> str:
        """Topic that the schema file's name contains: the name without its suffix and without `-key` or `-value`."""
        return next((self.stem.removesuffix(kind) for kind in TOPIC_KINDS if self.stem.endswith(kind)), self.stem)

    @property
    def directory(self) -> str:
        """Name of the schema file's directory, percent-decoded."""
        return decode_subject(self._stem_and_directory[1])[0]

    @property
    def _stem_and_directory(self) -> tuple[str, Sequence[str]]:
        path = PurePosixPath(self.path)
        directories = [part for part in path.parent.parts if part != path.root]
        return decode_subject([*directories, without_suffix(path.name)])


def without_suffix(name: str) -> str:
    """Returns the name of a schema file without its suffix."""
    return next((name[: -len(suffix)] for suffix in SUFFIXES if name.lower().endswith(suffix)), name)


@dataclass(frozen=True, slots=True)
class Strategy:
    """A naming strategy, which derives the subject of a schema file. `template` is the subject with placeholders for
    parts of a `SubjectSource`, such as `{topic}-{kind}`."""

    name: str
    template: str
    purpose: str


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.name: strategy
        for strategy in (
            Strategy("topic", "{topic}-{kind}", "orders.avsc and orders-value.avsc are orders-value"),
            Strategy("record", "{record}", "the full name of the record, such as shop.Order"),
            Strategy("topic-record", "{directory}-{record}", "the file's directory is the topic: orders-shop.Order"),
            Strategy("file", "{stem}", "the file's name without .avsc"),
        )
    }
)


@dataclass(frozen=True, slots=True)
class SubjectRule:
    """A rule that derives the subject of every file whose path matches `pattern`; a pattern without a slash may also
    match the file's name. `template` is the subject, with placeholders as in a `Strategy`, such as `{topic}-value`."""

    pattern: str
    template: str

    def __post_init__(self) -> None:
        _fill_template(self.template, SubjectSource("a/b.avsc", "n.R"))

    def covers(self, path: str) -> bool:
        path = path.removeprefix("./")
        pattern = self.pattern.removeprefix("./")
        name = "" if "/" in pattern else PurePosixPath(path).name
        return pattern in (path, name) or any(fnmatch.fnmatchcase(text, pattern) for text in (path, name) if text)


def derive_subject(source: SubjectSource, strategy: str, rules: Sequence[SubjectRule] = ()) -> str:
    """Returns the subject of a schema file: by the first rule that matches its path, else by the strategy.

    Args:
        source: the path of the file and the full name of its schema.
        strategy: the name of a strategy in `STRATEGIES`.

    Raises:
        NoSubject: the template needs the name of the file, schema or directory, and there is none, or the subject is
            empty.
    """
    template = next((rule.template for rule in rules if rule.covers(source.path)), STRATEGIES[strategy].template)
    subject = _fill_template(template, source)
    if not subject:
        raise NoSubject(f"the derived subject is empty; {REMEDY}")
    return subject


@dataclass(frozen=True, slots=True)
class SubjectNaming:
    """The strategy and the rules that derive the subjects of the checked files."""

    strategy: str = "topic"
    rules: tuple[SubjectRule, ...] = ()

    @property
    def needs_record(self) -> bool:
        """Whether the subject of some file depends on the name of its schema."""
        templates = [STRATEGIES[self.strategy].template, *(rule.template for rule in self.rules)]
        return any(word in template for template in templates for word in ("{record}", "{name}", "{namespace}"))

    def derive_subject(self, source: SubjectSource) -> str:
        """Returns the subject of the schema file that `source` describes.

        Raises:
            NoSubject: no subject can be derived from the names of the file, its directory and its schema.
        """
        return derive_subject(source, self.strategy, self.rules)


def _fill_template(template: str, source: SubjectSource) -> str:
    namespace, _, name = source.record.rpartition(".")
    words = {
        "stem": source.stem,
        "topic": source.topic,
        "kind": "key" if source.stem.endswith("-key") else "value",
        "directory": source.directory,
        "record": source.record,
        "name": name,
        "namespace": namespace,
    }
    try:
        subject = template.format_map(words)
    except (KeyError, IndexError, ValueError, AttributeError):
        expected = ", ".join(f"{{{word}}}" for word in words)
        raise NoSubject(f"{template!r} is not a subject template; expected text that may contain {expected}") from None
    if not source.record and any(f"{{{word}}}" in template for word in ("record", "name")):
        raise NoSubject(f"the subject is derived from the name of the schema, and the schema has no name; {REMEDY}")
    if not source.stem and any(f"{{{word}}}" in template for word in ("stem", "topic")):
        raise NoSubject(f"the subject is derived from the name of the file, and the name is empty; {REMEDY}")
    if "{directory}" in template and not source.directory:
        raise NoSubject(
            f"the subject is derived from the name of the file's directory, and its path has no directory; {REMEDY}"
        )
    return subject
