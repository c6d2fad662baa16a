"""Schema texts that may use the named types of each other, without anybody listing which uses which.

Most texts stand alone and are simply parsed. Only where a text uses a type that it does not define are the other
texts searched for it: the definition nearest by folder is taken, and those that it needs in turn. Two equally near
definitions that differ are an error, since either could be meant; so are files that need each other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from avro_schema import Schema, SchemaParseError, parse_schema
from avro_schema.names import COMPLEX_TYPES, PRIMITIVES, full_name

FILES_DEEP_MAX = 100
"""Longest chain of files that need each other's types; bounds the recursion."""


@dataclass(frozen=True, slots=True)
class TypeNames:
    """What a text defines (full name to definition) and uses (the names that a use may mean, best first)."""

    defined: Mapping[str, Any]
    used: tuple[tuple[str, ...], ...]

    def missing(self) -> Iterator[tuple[str, ...]]:
        for names in self.used:
            if not any(name in self.defined for name in names):
                yield names


class TypeSet:
    """Texts by path, to which more may be added at any time; `more` is asked when a type is in none of them."""

    def __init__(
        self,
        texts: Mapping[str, str],
        *,
        strict: bool = True,
        prefix: str = "",
        more: Sequence[Callable[[str], Mapping[str, str]]] = (),
    ) -> None:
        """
        Args:
            prefix: stands before the path in messages, such as `main:` of a git revision.
            more: each gives for a path the texts that may define what it misses, such as those of its folder; asked
                one after the other until the type is found.
        """
        self.texts = dict(texts)
        self._strict = strict
        self._prefix = prefix
        self._more = more
        self._parsed: dict[str, Schema | SchemaParseError] = {}
        self._alone: set[str] = set()
        self._names: dict[str, TypeNames] = {}
        self._index: dict[str, list[str]] = {}
        self._indexed: set[str] = set()
        self._asked: set[tuple[int, str]] = set()

    def schema(self, path: str) -> Schema:
        """The schema of one text.

        Raises:
            SchemaParseError: it is none, or a type that it uses cannot be found.
        """
        return self._schema(path, ())

    def schema_once(self, path: str) -> Schema:
        """The schema of one text that nobody asks for again, unless other texts use its types.

        Raises:
            SchemaParseError: see `schema`.
        """
        schema = self.schema(path)
        self.release(path)
        return schema

    def release(self, path: str) -> None:
        """Forgets what a text was parsed to: thousands of schemas take long to keep and to take down."""
        if not self._indexed:
            self._parsed.pop(path, None)

    def stands_alone(self, path: str) -> bool:
        """Whether a text that was parsed means the same wherever it stands: it uses no other text's types."""
        return path in self._alone

    def needs(self, path: str) -> tuple[str, ...]:
        """The texts that define what one text misses, itself not among them; none where one cannot be told."""
        found: dict[str, None] = {}
        for names in self.names(path).missing():
            other = self._place_of(path, names)
            if other is not None:
                found[other] = None
        return tuple(found)

    def names(self, path: str) -> TypeNames:
        known = self._names.get(path)
        if known is None:
            known = self._names[path] = type_names(self.texts[path])
        return known

    def _schema(self, path: str, above: tuple[str, ...]) -> Schema:
        known = self._parsed.get(path)
        if known is None:
            try:
                known = self._parse(path, above)
            except SchemaParseError as error:
                known = error
            self._parsed[path] = known
        if isinstance(known, SchemaParseError):
            raise known
        return known

    def _parse(self, path: str, above: tuple[str, ...]) -> Schema:
        text, source = self.texts[path], f"{self._prefix}{path}"
        try:
            schema = parse_schema(text, source=source, strict=self._strict)
        except SchemaParseError as error:
            others = self._needs_or_fail(path, error)
            if not others:
                raise
            place = error.position
        else:
            self._alone.add(path)
            return schema
        above = (*above, path)
        for other in others:
            if other in above:
                raise SchemaParseError(_cycle((*above[above.index(other) :], other)), place, source)
        if len(above) > FILES_DEEP_MAX:
            raise SchemaParseError(f"more than {FILES_DEEP_MAX} files need each other's types", place, source)
        try:
            references = [self._schema(other, above) for other in others]
        except SchemaParseError as error:
            if " need each other's types" in error.message:
                raise SchemaParseError(error.message, place, source) from None
            message = f"uses a type of {error.source}, which is not a schema: {error}"
            raise SchemaParseError(message, place, source) from None
        return parse_schema(text, references=references, source=source, strict=self._strict)

    def _needs_or_fail(self, path: str, error: SchemaParseError) -> tuple[str, ...]:
        try:
            return self.needs(path)
        except AmbiguousType as ambiguous:
            raise SchemaParseError(str(ambiguous), error.position, error.source) from None

    def _place_of(self, path: str, names: Sequence[str]) -> str | None:
        for index in self._indexes(path):
            for name in names:
                places = [place for place in index.get(name, ()) if place != path]
                if places:
                    return self._nearest(path, name, places)
        return None

    def _indexes(self, path: str) -> Iterator[Mapping[str, Sequence[str]]]:
        """The index of the texts at hand, and if that does not do, with those of `more`."""
        yield self._with_index()
        for number, further in enumerate(self._more):
            asked = (number, path.rpartition("/")[0])
            if asked not in self._asked:
                self._asked.add(asked)
                self.texts = {**further(path), **self.texts}
                yield self._with_index()

    def _with_index(self) -> Mapping[str, Sequence[str]]:
        if len(self._indexed) < len(self.texts):
            for path in self.texts.keys() - self._indexed:
                for name in self.names(path).defined:
                    self._index.setdefault(name, []).append(path)
            self._indexed.update(self.texts)
        return self._index

    def _nearest(self, path: str, name: str, places: Sequence[str]) -> str:
        shared = {place: _shared_folders(path, place) for place in places}
        most = max(shared.values())
        nearest = sorted(place for place in places if shared[place] == most)
        definitions = [self.names(place).defined[name] for place in nearest]
        if any(definition != definitions[0] for definition in definitions[1:]):
            raise AmbiguousType(name, [f"{self._prefix}{place}" for place in nearest])
        return nearest[0]


class AmbiguousType(Exception):
    def __init__(self, name: str, places: Sequence[str]) -> None:
        super().__init__(name, places)
        self.name = name
        self.places = places

    def __str__(self) -> str:
        return f"the type {self.name} is defined differently in {' and '.join(self.places[:3])}; keep one of them"


def _cycle(paths: Sequence[str]) -> str:
    return f"files need each other's types in a circle ({' -> '.join(paths)}); put these types into one file"


def _shared_folders(path: str, other: str) -> tuple[int, int]:
    """How near another text is: by folders in common, then by folders between."""
    mine, others = path.split("/")[:-1], other.split("/")[:-1]
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine, others, strict=False)))
    return shared, -len(others)


def type_names(text: str) -> TypeNames:
    """The types a text defines and uses, read with little care: what is wrong with it the parser says better."""
    defined: dict[str, Any] = {}
    used: dict[tuple[str, ...], None] = {}
    try:
        _collect(json.loads(text), "", defined, used)
    except (ValueError, RecursionError):
        return TypeNames({}, ())
    return TypeNames(defined, tuple(used))


def _collect(node: Any, namespace: str, defined: dict[str, Any], used: dict[tuple[str, ...], None]) -> None:
    if isinstance(node, str):
        if node and node not in PRIMITIVES and node not in COMPLEX_TYPES:
            used[tuple(dict.fromkeys((full_name(node, namespace).full, node)))] = None
    elif isinstance(node, list):
        for branch in node:
            _collect(branch, namespace, defined, used)
    elif isinstance(node, dict):
        _collect_object(node, namespace, defined, used)


def _collect_object(
    node: dict[str, Any], namespace: str, defined: dict[str, Any], used: dict[tuple[str, ...], None]
) -> None:
    kind, name = node.get("type"), node.get("name")
    if kind in ("record", "error", "enum", "fixed") and isinstance(name, str):
        space = node.get("namespace", namespace)
        full = full_name(name, space if isinstance(space, str) else namespace)
        defined.setdefault(full.full, node)
        for field in node["fields"] if isinstance(node.get("fields"), list) else ():
            if isinstance(field, dict):
                _collect(field.get("type"), full.namespace, defined, used)
    elif kind == "array":
        _collect(node.get("items"), namespace, defined, used)
    elif kind == "map":
        _collect(node.get("values"), namespace, defined, used)
    elif isinstance(kind, str):
        _collect(kind, namespace, defined, used)


def root_name(text: str) -> str:
    """The full name of a text's outermost type, "" where it has none or the text cannot be read."""
    try:
        node = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        return ""
    space = node.get("namespace")
    return full_name(node["name"], space if isinstance(space, str) else "").full


def plain_text(text: str) -> str:
    """A text without its white space, to tell whether two say the same word for word."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except (ValueError, RecursionError):
        return text
