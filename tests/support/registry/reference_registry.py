"""An in-memory imitation of the reference implementation (7.x and 8.x), limited to the requests that transfers send.

It is written from the behaviour of the reference and shares no code with this registry, so that a transfer between the
two proves that both interpret the API in the same way.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from headrace.registry import errors

JsonObject = dict[str, Any]


class ReferenceRegistry:
    """Handles the requests of a client like the reference implementation.

    Args:
        release: 8 marks deleted versions in lists of schemas, 7 does not.
        page_max: maximum length of a list of schemas.
        pages: whether requests for a page of a list are obeyed. Some implementations return the whole list instead.
        lists_contexts: whether a requested prefix of contexts is obeyed. Some implementations ignore it.
        stores_rules: whether rule sets are stored; the community edition drops them.
    """

    def __init__(
        self,
        *,
        release: int = 8,
        page_max: int = 1000,
        pages: bool = True,
        lists_contexts: bool = True,
        stores_rules: bool = True,
    ) -> None:
        self.url = "http://reference"
        self.release = release
        self.page_max = page_max
        self.pages = pages
        self.lists_contexts = lists_contexts
        self.stores_rules = stores_rules
        self.stored: dict[tuple[str, int], JsonObject] = {}
        self.configs: dict[str, JsonObject] = {}
        self.modes: dict[str, str] = {}
        self.calls: list[tuple[str, str]] = []

    def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> Any:
        self.calls.append((method, path))
        parts = [unquote(part) for part in path.strip("/").split("/")]
        handler = getattr(self, f"_{method.lower()}_{parts[0]}", None)
        if handler is None:
            raise errors.ServiceError("HTTP 404 Not Found", status=404, error_code=404)
        return copy.deepcopy(handler(parts[1:], dict(query or {}), copy.deepcopy(dict(body or {}))))

    def register(self, subject: str, text: str, **more: Any) -> JsonObject:
        response: JsonObject = self.call("POST", f"/subjects/{subject}/versions", body={"schema": text, **more})
        return response

    def delete(self, subject: str, version: int) -> None:
        self.call("DELETE", f"/subjects/{subject}/versions/{version}")

    def _get_contexts(self, rest: list[str], query: JsonObject, body: JsonObject) -> list[str]:
        return sorted({".", *(_context(subject) for subject, _ in self.stored)})

    def _get_schemas(self, rest: list[str], query: JsonObject, body: JsonObject) -> list[Any]:
        if rest == ["types"]:
            return ["AVRO"]
        prefix = query.get("subjectPrefix", "")
        aliases = self._aliases(prefix) if query.get("aliases") == "true" else {}
        chosen = []
        for (subject, version), value in sorted(self.stored.items(), key=lambda item: item[0]):
            matches = subject.startswith(prefix) if prefix.startswith(":.") else _context(subject) == "."
            matches = matches or not self.lists_contexts or subject in aliases
            if matches and (query.get("deleted") == "true" or not value["deleted"]):
                shown = {key: item for key, item in value.items() if item or key == "schema"}
                if self.release < 8:
                    shown.pop("deleted", None)
                    shown.pop("schemaType", None)
                else:
                    shown = {**shown, "schemaType": "AVRO", "guid": "g", "ts": 1, "deleted": value["deleted"]}
                if subject in aliases:
                    shown["aliases"] = aliases[subject]
                chosen.append({"subject": subject, "version": version, **shown})
        if not self.pages:
            return chosen
        limit = int(query.get("limit", 0))
        limit = limit if 0 < limit <= self.page_max else self.page_max
        offset = int(query.get("offset", 0))
        return chosen[offset : offset + limit]

    def _aliases(self, prefix: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for scope, config in self.configs.items():
            matches = scope.startswith(prefix) if prefix.startswith(":.") else _context(scope) == "."
            if matches and config.get("alias"):
                found.setdefault(_referenced(scope, config["alias"]), []).append(scope)
        return found

    def _post_subjects(self, rest: list[str], query: JsonObject, body: JsonObject) -> JsonObject:
        subject = rest[0]
        mode = self._mode_in_scope(subject)
        wanted_id = body.get("id", -1)
        if mode == "READONLY" or (wanted_id >= 0) != (mode == "IMPORT"):
            raise errors.OperationNotPermitted(message=f"Subject {subject} is in mode {mode}")
        content = {
            "schema": body["schema"],
            "references": body.get("references") or [],
            "metadata": body.get("metadata") or {},
            "ruleSet": (body.get("ruleSet") or {}) if self.stores_rules else {},
        }
        for reference in content["references"]:
            if (_referenced(subject, reference["subject"]), reference["version"]) not in self.stored:
                raise errors.InvalidSchema(message="No schema reference found")
        same_context = {key: value for key, value in self.stored.items() if _context(key[0]) == _context(subject)}
        if wanted_id >= 0:
            owners = [value for value in same_context.values() if value["id"] == wanted_id]
            if any({key: owner[key] for key in content} != content for owner in owners):
                raise errors.OperationNotPermitted(
                    message=f"Overwrite new schema with id {wanted_id} in context {_context(subject)} is not permitted."
                )
            schema_id = wanted_id
        else:
            same = [v["id"] for v in same_context.values() if {key: v[key] for key in content} == content]
            schema_id = same[0] if same else max([v["id"] for v in same_context.values()], default=0) + 1
        numbers = [number for name, number in self.stored if name == subject]
        version = body.get("version") or max(numbers, default=0) + 1
        self._push_out(subject, version, schema_id)
        self.stored[subject, version] = {**content, "id": schema_id, "deleted": False}
        return {"id": schema_id, "version": version}

    def _push_out(self, subject: str, version: int, schema_id: int) -> None:
        for (name, number), value in list(self.stored.items()):
            is_same = name == subject and number < version and value["id"] == schema_id
            if is_same and value["deleted"] and not self._referring(name, number):
                del self.stored[name, number]

    def _delete_subjects(self, rest: list[str], query: JsonObject, body: JsonObject) -> int:
        subject, version = rest[0], int(rest[2])
        if self._mode_in_scope(subject) == "READONLY":
            raise errors.OperationNotPermitted(message=f"Subject {subject} is in read-only mode")
        value = self.stored.get((subject, version))
        if value is None:
            raise errors.VersionNotFound(version=version)
        if value["deleted"]:
            raise errors.VersionSoftDeleted(subject=subject, version=version)
        if any(not referring["deleted"] for referring in self._referring(subject, version)):
            raise errors.ReferenceExists(subject=subject, version=version)
        value["deleted"] = True
        return version

    def _referring(self, subject: str, version: int) -> list[JsonObject]:
        return [
            value
            for (name, _), value in self.stored.items()
            for reference in value["references"]
            if (_referenced(name, reference["subject"]), reference["version"]) == (subject, version)
        ]

    def _get_config(self, rest: list[str], query: JsonObject, body: JsonObject) -> JsonObject:
        if not rest:
            return self.configs.get(":.:", {"compatibilityLevel": "BACKWARD"})
        if rest[0] not in self.configs:
            raise errors.SubjectLevelNotConfigured(subject=rest[0])
        return self.configs[rest[0]]

    def _put_config(self, rest: list[str], query: JsonObject, body: JsonObject) -> JsonObject:
        scope = rest[0] if rest else ":.:"
        if self._mode_in_scope(scope) == "READONLY":
            raise errors.OperationNotPermitted(message=f"Subject {scope} is in read-only mode")
        changes = {{"compatibility": "compatibilityLevel"}.get(key, key): value for key, value in body.items()}
        merged = {**self.configs.get(scope, {}), **changes}
        self.configs[scope] = {key: value for key, value in merged.items() if value is not None}
        return body

    def _delete_config(self, rest: list[str], query: JsonObject, body: JsonObject) -> JsonObject:
        if self._mode_in_scope(rest[0]) == "READONLY":
            raise errors.OperationNotPermitted(message=f"Subject {rest[0]} is in read-only mode")
        return self.configs.pop(rest[0])

    def _get_mode(self, rest: list[str], query: JsonObject, body: JsonObject) -> JsonObject:
        if not rest:
            return {"mode": self.modes.get(":.:", "READWRITE")}
        if rest[0] not in self.modes:
            raise errors.SubjectModeNotConfigured(subject=rest[0])
        return {"mode": self.modes[rest[0]]}

    def _put_mode(self, rest: list[str], query: JsonObject, body: JsonObject) -> JsonObject:
        scope = rest[0] if rest else ":.:"
        if body["mode"] == "IMPORT" and self._mode_in_scope(scope) != "IMPORT" and query.get("force") != "true":
            inside = [key for key in self.stored if key[0] == scope or f":{_context(key[0])}:" == scope]
            if any(not self.stored[key]["deleted"] for key in inside):
                raise errors.OperationNotPermitted(message="Cannot import since found existing subjects")
            for key in inside:
                del self.stored[key]
        self.modes[scope] = body["mode"]
        return body

    def _delete_mode(self, rest: list[str], query: JsonObject, body: JsonObject) -> JsonObject:
        return {"mode": self.modes.pop(rest[0] if rest else ":.:")}

    def _mode_in_scope(self, scope: str) -> str:
        for name in (scope, f":{_context(scope)}:", ":.__GLOBAL:"):
            if name in self.modes:
                return self.modes[name]
        return "READWRITE"


def _context(subject: str) -> str:
    return subject[1:].partition(":")[0] if subject.startswith(":.") else "."


def _referenced(subject: str, name: str) -> str:
    if name.startswith(":.") or _context(subject) == ".":
        return name
    return f":{_context(subject)}:{name}"
