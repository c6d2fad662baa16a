"""Schema texts that use each other's named types without declaring which file defines them.

Most texts are self-contained and parsed directly. If a text uses an undefined type, other texts are searched for its
definition: first texts of the same directory, then texts given as types, then the text nearest by directory, and
recursively their dependencies. All nearer texts are loaded first, so the result depends on which other texts were named
in one case only: two equally near definitions that differ are an error, unless only one of them was named. Files that
use each other's types in a cycle are an error too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any, Protocol

from headrace.avro_schema import Schema, SchemaParseError, parse_schema
from headrace.avro_schema.names import COMPLEX_TYPES, PRIMITIVES, full_name

FILES_DEEP_MAX = 100
"""Maximum length of a chain of files in which each uses a type of the next one; bounds the recursion."""


@dataclass(frozen=True, slots=True)
class TypeNames:
    """The types that a text defines and uses.

    `defined` maps full names to definitions. `used` has one entry per used name: the full names that it may denote, in
    the order in which they are tried.
    """

    defined: Mapping[str, Any]
    used: tuple[tuple[str, ...], ...]

    def missing(self) -> Iterator[tuple[str, ...]]:
        for names in self.used:
            if not any(name in self.defined for name in names):
                yield names


class TypeSource(Protocol):
    """Loads further texts, which the command line does not name but which may define missing types."""

    def siblings(self, path: str) -> Sequence[str]:
        """Returns the paths of the texts in the directory of `path`."""
        ...

    def descendants(self, path: str, directory: str) -> Sequence[str]:
        """Returns the paths of the texts below `directory` that may define a type which the text at `path` uses.
        `directory` contains `path`; "." stands for all available texts."""
        ...

    def read(self, paths: Sequence[str]) -> Mapping[str, str]: ...


class TypeSet:
    """Schema texts by path, and their schemas, which may use types of other texts of the set; texts can be added at any
    time."""

    def __init__(
        self,
        texts: Mapping[str, str],
        *,
        strict: bool = True,
        prefix: str = "",
        given_types: Collection[str] = (),
        type_source: TypeSource | None = None,
    ) -> None:
        """Creates a set of schema texts that may use each other's types.

        Args:
            texts: texts by path; more can be added later.
            strict: also refuse invalid defaults and namespaces.
            prefix: prepended to paths in messages, such as `main:` for a git revision.
            given_types: paths of the texts that the user named as sources of types. They take precedence over all other
                texts, except texts of the directory in which a type is used.
            type_source: loads further texts.
        """
        self.texts = dict(texts)
        self._given = frozenset(texts)
        self._strict = strict
        self._prefix = prefix
        self._given_types = given_types
        self._type_source = type_source
        self._parsed: dict[str, Schema | SchemaParseError] = {}
        self._self_contained: set[str] = set()
        self._names: dict[str, TypeNames] = {}
        self._index: dict[str, list[str]] = {}
        self._indexed: set[str] = set()
        self._loaded_siblings: set[str] = set()
        self._loaded_descendants: set[str] = set()

    def schema(self, path: str) -> Schema:
        """Returns the schema of the text at `path`.

        Raises:
            SchemaParseError: the text is not a schema, or a type that it uses is not defined, defined ambiguously or
                defined in a cycle of files.
        """
        return self._schema(path, ())

    def schema_once(self, path: str) -> Schema:
        """Returns the schema of the text at `path` without caching it, for callers that use each schema only once. It
        is cached nevertheless once this set has searched for types of other texts.

        Raises:
            SchemaParseError: as for `schema`.
        """
        schema = self.schema(path)
        self.release(path)
        return schema

    def release(self, path: str) -> None:
        """Removes the schema of the text at `path` from the cache, because a check is slow with thousands of cached
        schemas. Does nothing once this set has searched for types of other texts."""
        if not self._indexed:
            self._parsed.pop(path, None)

    def is_self_contained(self, path: str) -> bool:
        """Whether a parsed text uses no types of other texts, so that its meaning does not depend on its path."""
        return path in self._self_contained

    def dependencies(self, path: str) -> tuple[str, ...]:
        """Returns the paths of the schema files that define the named types which the file `path` uses but does not
        define. Types that no file defines are omitted.

        Raises:
            AmbiguousType: two files that are equally near in the directory tree define a type differently.
        """
        found: dict[str, None] = {}
        for names in self.names(path).missing():
            other = self._defining_path(path, names)
            if other is not None:
                found[other] = None
        return tuple(found)

    def possible_dependencies(self, path: str) -> tuple[str, ...]:
        """Returns the paths of all files that may define a type which the file `path` uses but does not define. Unlike
        `dependencies`, returns every file of several that define the same type equally near."""
        found: dict[str, None] = {}
        for names in self.names(path).missing():
            found.update(dict.fromkeys(self._defining(path, names)[1]))
        return tuple(found)

    def names(self, path: str) -> TypeNames:
        cached = self._names.get(path)
        if cached is None:
            cached = self._names[path] = parse_type_names(self.texts[path])
        return cached

    def _schema(self, path: str, chain: tuple[str, ...]) -> Schema:
        cached = self._parsed.get(path)
        if cached is None:
            try:
                cached = self._parse(path, chain)
            except SchemaParseError as error:
                cached = error
            self._parsed[path] = cached
        if isinstance(cached, SchemaParseError):
            raise cached
        return cached

    def _parse(self, path: str, chain: tuple[str, ...]) -> Schema:
        text, source = self.texts[path], f"{self._prefix}{path}"
        try:
            schema = parse_schema(text, source=source, strict=self._strict)
        except SchemaParseError as error:
            others = self._dependencies_or_fail(path, error)
            if not others:
                raise
            position = error.position
        else:
            self._self_contained.add(path)
            return schema
        chain = (*chain, path)
        for other in others:
            if other in chain:
                raise SchemaParseError(_cycle((*chain[chain.index(other) :], other)), position, source)
        if len(chain) > FILES_DEEP_MAX:
            raise SchemaParseError(
                f"files need each other's types in a chain of more than {FILES_DEEP_MAX} files; put related "
                "types into one file",
                position,
                source,
            )
        try:
            references = [self._schema(other, chain) for other in others]
        except SchemaParseError as error:
            if " need each other's types" in error.message:
                raise SchemaParseError(error.message, position, source) from None
            message = f"uses a type of {error.source}, which is not a schema: {error}"
            raise SchemaParseError(message, position, source) from None
        return parse_schema(text, references=references, source=source, strict=self._strict)

    def _dependencies_or_fail(self, path: str, error: SchemaParseError) -> tuple[str, ...]:
        try:
            return self.dependencies(path)
        except AmbiguousType as ambiguous:
            raise SchemaParseError(str(ambiguous), error.position, error.source) from None

    def _defining_path(self, path: str, names: Sequence[str]) -> str | None:
        name, paths = self._defining(path, names)
        return self._one_of(name, paths) if paths else None

    def _defining(self, path: str, names: Sequence[str]) -> tuple[str, Sequence[str]]:
        """Returns the first of `names` that a text other than `path` defines, and the paths of the nearest such texts;
        no paths if there is no such name."""
        found = ((name, self._nearest_paths(path, name)) for name in names)
        return next((item for item in found if item[1]), ("", ()))

    def _nearest_paths(self, path: str, name: str) -> Sequence[str]:
        """Returns the paths of the texts that define the type `name`, for the text at `path`, which uses the type:
        those in the same directory, else the nearest of the texts given as types, else the nearest of all texts."""
        self._load_siblings(path)
        directory = _directories(path)
        siblings = [other for other in self._defining_paths(path, name) if _directories(other) == directory]
        given = [other for other in self._defining_paths(path, name) if other in self._given_types]
        if siblings or given:
            return siblings or _nearest(path, given)
        nearest = _nearest(path, self._defining_paths(path, name))
        shared = _shared(path, nearest[0]) if nearest else []
        self._load_descendants(path, str(PurePosixPath(*shared)))
        return _nearest(path, self._defining_paths(path, name))

    def _defining_paths(self, path: str, name: str) -> Sequence[str]:
        return [other for other in self._with_index().get(name, ()) if other != path]

    def _load_siblings(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        if self._type_source is not None and directory not in self._loaded_siblings:
            self._loaded_siblings.add(directory)
            self._add(self._type_source, self._type_source.siblings(path))

    def _load_descendants(self, path: str, directory: str) -> None:
        """Loads the texts below a directory that may define a type which the text at `path` uses. Does nothing if the
        texts below this directory, or below one that contains it, have been loaded before."""
        chain = {directory, *map(str, PurePosixPath(directory).parents)}
        if self._type_source is not None and self._loaded_descendants.isdisjoint(chain):
            self._loaded_descendants.add(directory)
            self._add(self._type_source, self._type_source.descendants(path, directory))

    def _add(self, type_source: TypeSource, paths: Sequence[str]) -> None:
        self.texts.update(type_source.read([path for path in paths if path not in self.texts]))

    def _with_index(self) -> Mapping[str, Sequence[str]]:
        if len(self._indexed) < len(self.texts):
            for path in self.texts.keys() - self._indexed:
                for name in self.names(path).defined:
                    self._index.setdefault(name, []).append(path)
            self._indexed.update(self.texts)
        return self._index

    def _one_of(self, name: str, paths: Sequence[str]) -> str:
        # An outdated copy may exist next to a named file, such as a build output; named files take precedence.
        paths = [other for other in paths if other in self._given] or paths
        definitions = [self.names(other).defined[name] for other in paths]
        if any(definition != definitions[0] for definition in definitions[1:]):
            raise AmbiguousType(name, [f"{self._prefix}{other}" for other in paths])
        return paths[0]


class AmbiguousType(Exception):
    def __init__(self, name: str, paths: Sequence[str]) -> None:
        super().__init__(name, paths)
        self.name = name
        self.paths = paths

    def __str__(self) -> str:
        return (
            f"the type {self.name} is defined differently in {' and '.join(self.paths[:3])}; keep only one definition"
        )


def _cycle(paths: Sequence[str]) -> str:
    return f"files need each other's types in a cycle ({' -> '.join(paths)}); put these types into one file"


@lru_cache(maxsize=100_000)
def _directories(path: str) -> tuple[str, ...]:
    return PurePosixPath(path).parts[:-1]


def _shared(path: str, other: str) -> list[str]:
    """Returns the leading directories that the paths `path` and `other` have in common, outermost first."""
    pairs = zip(_directories(path), _directories(other), strict=False)
    return [directory for directory, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]


def _nearest(path: str, paths: Sequence[str]) -> Sequence[str]:
    """Returns the paths nearest to `path`, sorted: paths with the most leading directories in common with `path` and,
    among these, with the fewest directories."""
    distances = {other: (-len(_shared(path, other)), len(_directories(other))) for other in paths}
    least = min(distances.values(), default=None)
    return sorted(other for other in paths if distances[other] == least)


@lru_cache(maxsize=5_000)  # texts; many commits have the same ones
def parse_type_names(text: str) -> TypeNames:
    """Returns the types that a text defines and uses; for an invalid text, a `TypeNames` without types, because the
    schema parser reports a better error."""
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


def root_type_name(text: str) -> str:
    """Returns the full name of a text's root type, "" if it has none or the text is not JSON."""
    try:
        node = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(node, dict) or not isinstance(node.get("name"), str):
        return ""
    space = node.get("namespace")
    return full_name(node["name"], space if isinstance(space, str) else "").full


def compact_text(text: str) -> str:
    """Returns a JSON text without white space between its elements, for comparing two texts; another text is returned
    unchanged."""
    try:
        return json.dumps(json.loads(text), separators=(",", ":"))
    except (ValueError, RecursionError):
        return text
