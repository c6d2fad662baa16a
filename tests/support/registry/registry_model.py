"""A model of the registry: it computes the expected responses with plain dictionaries, in one context, without
revisions or caches.

It is written from the rules of the API, independently of the registry's code. It knows few schemas and represents each
by its meaning: a primitive type, `F1` to `F3` (the fixed `F` with that size), or a list of one of them. A schema may
refer to the `F` in a version of the subject `t`.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any

TARGET = "t"
"""The subject that the schemas of lists reference."""

Content = tuple[str, int | None]
"""The text of a schema, and the version of `TARGET` that it references (None for none)."""

Outcome = tuple[int, Any]
"""The HTTP status of a response, and its error code or the part of it that the tests compare."""

PROMOTIONS = {("long", "int"), ("string", "bytes"), ("bytes", "string")}
"""Pairs of different types (reader, writer) of which the reader can read the writer's data."""

LIST = '{"type":"array","items":"F"}'
PLAIN = {f'"{name}"': name for name in ("int", "long", "string", "bytes")}
FIXED = {f'{{"type":"fixed","name":"F","size":{size}}}': f"F{size}" for size in (1, 2, 3)}


def content(text: str, target: int | None = None) -> Content:
    return text, target


def request(item: Content, **more: Any) -> dict[str, Any]:
    """Returns the body of a request with this content."""
    text, target = item
    references = [] if target is None else [{"name": "F", "subject": TARGET, "version": target}]
    return {"schema": text, "references": references, **more}


@dataclass
class Stored:
    schema_id: int
    deleted: bool = False


class Refused(Exception):
    def __init__(self, status: int, code: int) -> None:
        super().__init__(status, code)
        self.outcome: Outcome = status, code


@dataclass
class RegistryModel:
    """The state of the registry and the responses that follow from it. A method raises `Refused` for an error
    response."""

    next_id: int = 1
    schemas: dict[int, Content] = field(default_factory=dict)
    """The content of every schema by id, in the order of registration."""
    subjects: dict[str, dict[int, Stored]] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)
    """The mode by subject; "" is the mode of the registry."""

    def copy(self) -> RegistryModel:
        return copy.deepcopy(self)

    # Changes.

    def register(
        self, requested: str, item: Content, schema_id: int | None = None, version: int | None = None
    ) -> Outcome:
        subject = self.target(requested)
        strict = self._meaning(item, deleted=schema_id is not None)
        meaning = strict or self._meaning(item, deleted=True)
        if meaning is not None and (version is None or schema_id is not None):
            found = self._matching(subject, item, meaning, version, deleted=False)
            if found is not None and schema_id in (None, self.subjects[subject][found].schema_id):
                return self._described(subject, found)
        mode = self.mode(subject)
        if mode == "READONLY" or (mode == "IMPORT") != (schema_id is not None):
            raise Refused(422, 42205)
        if strict is None:
            raise Refused(422, 42201)
        stored = self.subjects.get(subject, {})
        if schema_id is None:
            number = 1 + max(stored, default=0)
            self._require_compatible(subject, strict)
            chosen = self._id_of(item)
        else:
            number = version or 1 + max(stored, default=0)
            self._require_importable(stored.get(number), item, schema_id)
            chosen = schema_id
        self._add(subject, number, item, chosen)
        return self._described(subject, number)

    def _require_compatible(self, subject: str, meaning: str) -> None:
        live = [
            self.meaning(stored) for _, stored in sorted(self.subjects.get(subject, {}).items()) if not stored.deleted
        ]
        level = self.level(subject)
        earlier = live if level.endswith("TRANSITIVE") else live[-1:]
        for before in earlier if level != "NONE" else []:
            forward, backward = not level.startswith("BACKWARD"), not level.startswith("FORWARD")
            if (backward and not reads(meaning, before)) or (forward and not reads(before, meaning)):
                raise Refused(409, 40901)

    def _require_importable(self, existing: Stored | None, item: Content, schema_id: int) -> None:
        if self.schemas.get(schema_id, item) != item:
            raise Refused(422, 42205)
        if existing is not None and not existing.deleted and existing.schema_id != schema_id:
            raise Refused(422, 42207)

    def _id_of(self, item: Content) -> int:
        known = [schema_id for schema_id, other in self.schemas.items() if other == item]
        return known[0] if known else self.next_id

    def _add(self, subject: str, number: int, item: Content, schema_id: int) -> None:
        self.next_id = max(self.next_id, schema_id + 1)
        self.schemas.setdefault(schema_id, item)
        stored = self.subjects.setdefault(subject, {})
        stored[number] = Stored(schema_id)
        for other, before in list(stored.items()):
            is_replaced = before.deleted and before.schema_id == schema_id and other < number
            if is_replaced and not self._referring(subject, other, deleted=True):
                del stored[other]
        self._drop_unused()

    def delete_version(self, requested: str, version: int | None, permanent: bool) -> Outcome:
        subject = self.target(requested)
        stored = self.subjects.get(subject)
        if stored is None:
            raise Refused(404, 40401)
        live = [number for number in stored if not stored[number].deleted]
        number = max(live, default=0) if version is None else version
        if number not in stored:
            raise Refused(404, 40402)
        if stored[number].deleted and not permanent:
            raise Refused(404, 40406)
        self._require_writable(subject)
        if self._referring(subject, number, deleted=permanent):
            raise Refused(422, 42206)
        if permanent and not stored[number].deleted:
            raise Refused(404, 40407)
        self._delete(subject, [number], permanent)
        return 200, number

    def delete_subject(self, requested: str, permanent: bool) -> Outcome:
        subject = self.target(requested)
        stored = self.subjects.get(subject)
        if stored is None:
            raise Refused(404, 40401)
        live = sorted(number for number in stored if not stored[number].deleted)
        if not permanent and not live:
            raise Refused(404, 40404)
        self._require_writable(subject)
        if permanent and live:
            raise Refused(404, 40405)
        chosen = sorted(stored) if permanent else live
        for number in chosen:
            if any(other != subject for other, _ in self._referring(subject, number, deleted=permanent)):
                raise Refused(422, 42206)
        self._delete(subject, chosen, permanent)
        return 200, chosen

    def _delete(self, subject: str, numbers: list[int], permanent: bool) -> None:
        stored = self.subjects[subject]
        for number in numbers:
            if permanent:
                del stored[number]
            else:
                stored[number].deleted = True
        if not stored:
            for table in (self.subjects, self.configs, self.modes):
                table.pop(subject, None)  # type: ignore[attr-defined]
        self._drop_unused()

    def put_config(self, subject: str, change: dict[str, str | None]) -> Outcome:
        self._require_writable(subject)
        entry = {**self.configs.get(subject, {}), **change}
        self.configs[subject] = {key: value for key, value in entry.items() if value}
        if not self.configs[subject]:
            del self.configs[subject]
        return 200, None

    def delete_config(self, subject: str) -> Outcome:
        if subject not in self.configs and subject:
            raise Refused(404, 40401)
        self._require_writable(subject)
        self.configs.pop(subject, None)
        return 200, None

    def put_mode(self, subject: str, mode: str, force: bool) -> Outcome:
        if mode == "IMPORT" and not force and self.mode(subject) != "IMPORT":
            self._delete_for_import([subject] if subject else list(self.subjects))
        self.modes[subject] = mode
        return 200, mode

    def _delete_for_import(self, subjects: list[str]) -> None:
        selected = {subject: self.subjects[subject] for subject in subjects if subject in self.subjects}
        if any(not stored.deleted for versions in selected.values() for stored in versions.values()):
            raise Refused(422, 42205)
        for subject, versions in selected.items():
            for number in versions:
                if any(user not in selected for user, _ in self._referring(subject, number, deleted=True)):
                    raise Refused(422, 42206)
        for subject, versions in selected.items():
            self._delete(subject, list(versions), permanent=True)

    def delete_mode(self, subject: str) -> Outcome:
        if subject not in self.modes and subject:
            raise Refused(404, 40401)
        return 200, self.modes.pop(subject, "READWRITE")

    def _require_writable(self, subject: str) -> None:
        if self.mode(subject) == "READONLY":
            raise Refused(422, 42205)

    def _drop_unused(self) -> None:
        used = {stored.schema_id for versions in self.subjects.values() for stored in versions.values()}
        self.schemas = {schema_id: item for schema_id, item in self.schemas.items() if schema_id in used}

    # Reads.

    def target(self, subject: str) -> str:
        """Returns the subject that an alias refers to, or the subject itself if it is no alias."""
        return self.configs.get(subject, {}).get("alias") or subject

    def level(self, subject: str) -> str:
        entries = [self.configs[scope] for scope in (subject, "") if scope in self.configs]
        return entries[0].get("compatibility", "BACKWARD") if entries else "BACKWARD"

    def mode(self, subject: str) -> str:
        return next((self.modes[scope] for scope in (subject, "") if scope in self.modes), "READWRITE")

    def meaning(self, stored: Stored) -> str:
        found = self._meaning(self.schemas[stored.schema_id], deleted=True)
        assert found is not None, "what is referred to is never deleted for good"
        return found

    def names(self, *, deleted: bool) -> Outcome:
        return 200, sorted(
            subject
            for subject, versions in self.subjects.items()
            if deleted or any(not stored.deleted for stored in versions.values())
        )

    def numbers(self, requested: str, *, deleted: bool) -> Outcome:
        versions = self.subjects.get(self.target(requested), {})
        found = sorted(number for number, stored in versions.items() if deleted or not stored.deleted)
        if not found:
            raise Refused(404, 40401)
        return 200, found

    def version(self, requested: str, version: int | None, *, deleted: bool, resolved: bool) -> Outcome:
        """Returns the response to a request for a version.

        Args:
            version: the number; None for the latest version that is not deleted.
            deleted: whether to find soft-deleted versions too.
            resolved: whether the schema is returned with its references inlined.
        """
        subject = self.target(requested)
        versions = self.subjects.get(subject, {})
        seen = [n for n, stored in versions.items() if (deleted and version is not None) or not stored.deleted]
        number = max(seen, default=0) if version is None else version
        if number not in seen:
            self.numbers(requested, deleted=deleted)
            raise Refused(404, 40402)
        return self._described(subject, number, resolved=resolved)

    def schema(self, schema_id: int, *, resolved: bool) -> Outcome:
        if schema_id not in self.schemas:
            raise Refused(404, 40403)
        return 200, self._text(schema_id, resolved)

    def users(self, schema_id: int, *, deleted: bool) -> Outcome:
        if schema_id not in self.schemas:
            raise Refused(404, 40403)
        return 200, self._users(schema_id, deleted=deleted)

    def look_up(self, requested: str, item: Content, *, deleted: bool) -> Outcome:
        subject = self.target(requested)
        meaning = self._meaning(item, deleted=True)
        if meaning is None:
            raise Refused(422, 42201)
        versions = self.subjects.get(subject, {})
        if not any(deleted or not stored.deleted for stored in versions.values()):
            raise Refused(404, 40401)
        found = self._matching(subject, item, meaning, None, deleted=deleted)
        if found is None:
            raise Refused(404, 40403)
        return self._described(subject, found)

    def compatible(self, requested: str, item: Content) -> Outcome:
        subject = self.target(requested)
        meaning = self._meaning(item, deleted=False)
        if meaning is None:
            raise Refused(422, 42201)
        try:
            self._require_compatible(subject, meaning)
        except Refused:
            return 200, False
        return 200, True

    def referring(self, requested: str, version: int, *, deleted: bool) -> Outcome:
        subject = self.target(requested)
        if version not in self.subjects.get(subject, {}):
            self.numbers(requested, deleted=True)
            raise Refused(404, 40402)
        users = self._referring(subject, version, deleted=deleted)
        return 200, sorted({self.subjects[name][number].schema_id for name, number in users})

    def _described(self, subject: str, number: int, *, resolved: bool = False) -> Outcome:
        schema_id = self.subjects[subject][number].schema_id
        return 200, (number, schema_id, self._text(schema_id, resolved))

    def _text(self, schema_id: int, resolved: bool) -> str:
        item = self.schemas[schema_id]
        return written(self._meaning(item, deleted=True) or "") if resolved else item[0]

    def _meaning(self, item: Content, *, deleted: bool) -> str | None:
        text, target = item
        if target is None:
            return read_text(text)
        found = self.subjects.get(TARGET, {}).get(target)
        if found is None or (found.deleted and not deleted):
            return None
        inner = self._meaning(self.schemas[found.schema_id], deleted=True)
        return f"list of {inner}" if inner is not None and inner.startswith("F") else None

    def _matching(self, subject: str, item: Content, meaning: str, version: int | None, *, deleted: bool) -> int | None:
        """Returns the version with the same content, otherwise the newest version with the same meaning; None if there
        is neither."""
        same, alike = [], []
        for number, stored in sorted(self.subjects.get(subject, {}).items(), reverse=True):
            if (stored.deleted and not deleted) or version not in (None, number):
                continue
            other = self.schemas[stored.schema_id]
            if other == item:
                same.append(number)
            elif self.meaning(stored) == meaning and (item[1] is None or item[1] == other[1]):
                alike.append(number)
        return next(iter(same + alike), None)

    def _users(self, schema_id: int, *, deleted: bool) -> list[tuple[str, int]]:
        return sorted(
            (subject, number)
            for subject, versions in self.subjects.items()
            for number, stored in versions.items()
            if stored.schema_id == schema_id and (deleted or not stored.deleted)
        )

    def _referring(self, subject: str, version: int, *, deleted: bool) -> list[tuple[str, int]]:
        """Returns the (subject, version) of all versions whose schemas reference this version."""
        if subject != TARGET:
            return []
        refer = [schema_id for schema_id, item in self.schemas.items() if item[1] == version]
        return [user for schema_id in refer for user in self._users(schema_id, deleted=deleted)]


def read_text(text: str) -> str:
    """Returns the meaning of a schema without references."""
    if text in PLAIN or text in FIXED:
        return {**PLAIN, **FIXED}[text]
    return f"list of {read_text(json.dumps(json.loads(text)['items'], separators=(',', ':')))}"


def written(meaning: str) -> str:
    """Returns the text, without references, of a schema with this meaning."""
    inner = meaning.removeprefix("list of ")
    text = next(text for text, name in {**PLAIN, **FIXED}.items() if name == inner)
    return text if inner == meaning else f'{{"type":"array","items":{text}}}'


def reads(reader: str, writer: str) -> bool:
    """Returns whether a reader schema with one meaning can read data of a writer schema with another."""
    if reader.startswith("list of ") and writer.startswith("list of "):
        return reads(reader.removeprefix("list of "), writer.removeprefix("list of "))
    return reader == writer or (reader, writer) in PROMOTIONS
