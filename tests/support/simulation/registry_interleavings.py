"""Tests that two registry processes on one database respond as the model, while requests and changes go to either in
any order, also after the database was restored from a copy.

Each process has its own caches of responses, schemas and views, and must notice the changes of the other.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import psycopg
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.registry.storage.database import Database
from support.examples import examples
from support.registry.registry_calls import RestResponse
from support.registry.registry_front import LEASE_S, RegistryBehindFront
from support.registry.registry_model import (
    FIXED,
    LIST,
    PLAIN,
    TARGET,
    Content,
    Outcome,
    Refused,
    RegistryModel,
    content,
    request,
)

EXAMPLES_ON_SQLITE = 0.06  # of the profile
EXAMPLES_ON_POSTGRES = 0.03  # each step takes several times as long
FRONTS = 2

fronts = st.integers(0, FRONTS - 1)
subjects = st.sampled_from(("a", "b", TARGET))
places = st.sampled_from(("a", "b", TARGET, ""))
numbers = st.integers(1, 3)
versions = st.one_of(st.none(), numbers)
WHOLE_LISTS = [f'{{"type":"array","items":{text}}}' for text in FIXED]
plain = st.sampled_from([content(text) for text in (*PLAIN, *FIXED, *WHOLE_LISTS)])
lists = st.builds(content, st.just(LIST), numbers)
contents = st.one_of(plain, lists)
targets = st.sampled_from([content(text) for text in FIXED])


def upgraded(url: str) -> Database:
    database = Database(url, lease_s=LEASE_S)
    database.upgrade()
    return database


def in_subject(subject: str, item: Content, fixed: Content) -> Content:
    """Returns the content to register in a subject. The subject that lists reference always gets the fixed type `F`,
    other subjects get `item`."""
    return fixed if subject == TARGET else item


def version_of(body: Any) -> tuple[int, int, str]:
    return body["version"], body["id"], body["schema"]


def outcome(response: RestResponse, read: Any) -> Outcome:
    return response.status, (read(response.json) if response.status == 200 else response.json["error_code"])


class Copies(Protocol):
    """Copies a database, and restores it from the copy while it is in use."""

    def take(self, url: str) -> None: ...

    def restore(self, url: str) -> None: ...


class SqliteCopies:
    def take(self, url: str) -> None:
        path = self._path(url)
        self._copy(path, path.with_suffix(".copy"))

    def restore(self, url: str) -> None:
        path = self._path(url)
        self._copy(path.with_suffix(".copy"), path)

    def _path(self, url: str) -> Path:
        return Path(url.removeprefix("sqlite:///"))

    def _copy(self, source: Path, target: Path) -> None:
        with closing(sqlite3.connect(source)) as before, closing(sqlite3.connect(target, timeout=30)) as after:
            before.backup(after)


class PostgresCopies:
    """Copies a database as a dump and restores it: all rows, including the database's identity, and the values of
    sequences."""

    def take(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            connection.execute("DROP SCHEMA IF EXISTS copied CASCADE")
            connection.execute("CREATE SCHEMA copied")
            for table in self._tables(connection):
                connection.execute(f"CREATE TABLE copied.{table} AS TABLE public.{table}".encode())
            connection.execute("CREATE TABLE copied.sequences AS SELECT sequencename, last_value FROM pg_sequences")

    def restore(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            tables = self._tables(connection)
            connection.execute(f"TRUNCATE {', '.join(tables)} RESTART IDENTITY CASCADE".encode())
            # Referenced tables first.
            for table in sorted(tables, key=lambda table: table not in ("schemas", "subjects")):
                connection.execute(f"INSERT INTO public.{table} TABLE copied.{table}".encode())
            connection.execute(
                "SELECT setval(sequencename::regclass, last_value) FROM copied.sequences WHERE last_value IS NOT NULL"
            )

    def _tables(self, connection: psycopg.Connection[Any]) -> list[str]:
        rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename")
        return [str(row[0]) for row in rows]


def copies_of(url: str) -> Copies:
    return SqliteCopies() if url.startswith("sqlite") else PostgresCopies()


def histories_of(url: str) -> settings:
    """Returns how many histories are tried on a kind of database, and their length, as settings of Hypothesis."""
    fraction = EXAMPLES_ON_SQLITE if url.startswith("sqlite") else EXAMPLES_ON_POSTGRES
    return settings(max_examples=examples(fraction), stateful_step_count=25)


class Interleavings(RuleBasedStateMachine):
    """The state machine of Hypothesis: its rules are requests to one of the registry processes, and its invariants
    compare their responses with the model.

    Args:
        new_database: creates a migrated database and returns its URL.
    """

    def __init__(self, new_database: Callable[[], str]) -> None:
        super().__init__()
        self.url = new_database()
        self.copies = copies_of(self.url)
        self.fronts = [RegistryBehindFront(self.url) for _ in range(FRONTS)]
        self.model = RegistryModel()
        self.copied: RegistryModel | None = None

    def teardown(self) -> None:
        for front in self.fronts:
            front.close()

    @initialize()
    def begin(self) -> None:
        """Registers the first subjects and references."""
        for item in list(FIXED)[:2]:
            self.put_config(0, "", "NONE")
            self.register(0, TARGET, content(item), content(item))
        self.register(1, "a", content(LIST, 1), content(LIST, 1))

    def _agree(
        self, expected: Any, arguments: tuple[Any, ...], options: dict[str, Any], response: RestResponse, read: Any
    ) -> None:
        try:
            expected_outcome = expected(*arguments, **options)
        except Refused as refusal:
            expected_outcome = refusal.outcome
        assert outcome(response, read) == expected_outcome, (response.text, expected_outcome)

    # Changes.

    @rule(front=fronts, subject=subjects, item=contents, fixed=targets)
    def register(self, front: int, subject: str, item: Content, fixed: Content) -> None:
        item = in_subject(subject, item, fixed)
        response = self.fronts[front].post(f"/subjects/{subject}/versions", request(item))
        self._agree(self.model.register, (subject, item), {}, response, version_of)

    @rule(front=fronts, subject=subjects, item=contents, fixed=targets, schema_id=st.integers(3, 8), version=versions)
    def bring(
        self, front: int, subject: str, item: Content, fixed: Content, schema_id: int, version: int | None
    ) -> None:
        """Registers a schema with a given id and version, which succeeds if the subject is in mode IMPORT."""
        item = in_subject(subject, item, fixed)
        more = {"id": schema_id} | ({} if version is None else {"version": version})
        response = self.fronts[front].post(f"/subjects/{subject}/versions", request(item, **more))
        self._agree(self.model.register, (subject, item, schema_id, version), {}, response, version_of)

    @rule(front=fronts, subject=subjects, version=versions, permanent=st.booleans())
    def delete_version(self, front: int, subject: str, version: int | None, permanent: bool) -> None:
        path = f"/subjects/{subject}/versions/{version or 'latest'}?permanent={permanent}"
        response = self.fronts[front].delete(path)
        self._agree(self.model.delete_version, (subject, version, permanent), {}, response, int)

    @rule(front=fronts, subject=subjects, version=versions)
    def delete_version_permanently(self, front: int, subject: str, version: int | None) -> None:
        self.delete_version(front, subject, version, False)
        self.compare_everything()
        self.delete_version(1 - front, subject, version or 1, True)

    @rule(front=fronts, fixed=targets, schema_id=st.integers(3, 8))
    def replace_target(self, front: int, fixed: Content, schema_id: int) -> None:
        """Deletes the subject that lists reference, and the lists with it, and imports it again with another
        content."""
        for subject in ("a", "b", TARGET):
            self.delete_subject(front, subject, False)
        self.compare_everything()
        self.put_mode(front, TARGET, "IMPORT", True)
        self.bring(1 - front, TARGET, fixed, fixed, schema_id, 1)
        self.delete_mode(front, TARGET)

    @rule(front=fronts, subject=subjects, permanent=st.booleans())
    def delete_subject(self, front: int, subject: str, permanent: bool) -> None:
        response = self.fronts[front].delete(f"/subjects/{subject}?permanent={permanent}")
        self._agree(self.model.delete_subject, (subject, permanent), {}, response, list)

    @rule(
        front=fronts,
        subject=places,
        level=st.sampled_from(("NONE", "BACKWARD", "FORWARD_TRANSITIVE", "FULL")),
    )
    def put_config(self, front: int, subject: str, level: str) -> None:
        response = self.fronts[front].put(f"/config/{subject}", {"compatibility": level})
        self._agree(self.model.put_config, (subject, {"compatibility": level}), {}, response, lambda _: None)

    @rule(front=fronts, alias=st.sampled_from(("b", None)))
    def put_alias(self, front: int, alias: str | None) -> None:
        response = self.fronts[front].put("/config/a", {"alias": alias})
        self._agree(self.model.put_config, ("a", {"alias": alias}), {}, response, lambda _: None)

    @rule(front=fronts, subject=places)
    def delete_config(self, front: int, subject: str) -> None:
        response = self.fronts[front].delete(f"/config/{subject}")
        self._agree(self.model.delete_config, (subject,), {}, response, lambda _: None)

    @rule(
        front=fronts,
        subject=places,
        mode=st.sampled_from(("READWRITE", "READWRITE", "IMPORT", "READONLY")),
        fsync=st.booleans(),
    )
    def put_mode(self, front: int, subject: str, mode: str, fsync: bool) -> None:
        response = self.fronts[front].put(f"/mode/{subject}?force={fsync}", {"mode": mode})
        self._agree(self.model.put_mode, (subject, mode, fsync), {}, response, lambda body: body["mode"])

    @rule(front=fronts, subject=places)
    def delete_mode(self, front: int, subject: str) -> None:
        response = self.fronts[front].delete(f"/mode/{subject}")
        self._agree(self.model.delete_mode, (subject,), {}, response, lambda body: body["mode"])

    # A restored database.

    @rule()
    def take_copy(self) -> None:
        self.copies.take(self.url)
        self.copied = self.model.copy()

    @precondition(lambda self: self.copied is not None)
    @rule()
    def put_copy_back(self) -> None:
        self.copies.restore(self.url)
        assert self.copied is not None
        self.model = self.copied.copy()
        time.sleep(LEASE_S)

    # Requests: to both processes, and to the one with cached responses.

    def _compare_on_both(
        self, expected: Any, arguments: tuple[Any, ...], options: dict[str, Any], read: Any, *call: Any
    ) -> None:
        for front in self.fronts:
            self._agree(expected, arguments, options, front.call(*call), read)

    @invariant()
    def compare_everything(self) -> None:
        """Sends the same read requests after every change and compares the responses with the model. A response that a
        process has cached for too long differs."""
        self._compare_on_both(self.model.names, (), {"deleted": True}, list, "GET", "/subjects?deleted=true")
        for schema_id in range(1, 6):
            path = f"/schemas/ids/{schema_id}?format=resolved"
            self._compare_on_both(
                self.model.schema, (schema_id,), {"resolved": True}, lambda body: body["schema"], "GET", path
            )
        for subject in ("a", "b", TARGET):
            path = f"/subjects/{subject}/versions"
            self._compare_on_both(
                self.model.numbers, (subject,), {"deleted": True}, list, "GET", f"{path}?deleted=true"
            )
            options = {"deleted": False, "resolved": True}
            call = "GET", f"{path}/latest?format=resolved"
            self._compare_on_both(self.model.version, (subject, None), options, version_of, *call)
        for item in (content(LIST, 1), content(WHOLE_LISTS[0])):
            call = "POST", "/subjects/a?deleted=true", request(item)
            self._compare_on_both(self.model.look_up, ("a", item), {"deleted": True}, version_of, *call)

    @rule(subject=subjects, version=versions, deleted=st.booleans(), resolved=st.booleans())
    def compare_subject(self, subject: str, version: int | None, deleted: bool, resolved: bool) -> None:
        self._compare_on_both(self.model.names, (), {"deleted": deleted}, list, "GET", f"/subjects?deleted={deleted}")
        path = f"/subjects/{subject}/versions"
        self._compare_on_both(
            self.model.numbers, (subject,), {"deleted": deleted}, list, "GET", f"{path}?deleted={deleted}"
        )
        format_name = "resolved" if resolved else ""
        query = f"/{version or 'latest'}?deleted={deleted}&format={format_name}"
        options = {"deleted": deleted, "resolved": resolved}
        self._compare_on_both(self.model.version, (subject, version), options, version_of, "GET", path + query)
        if version is not None:
            path = f"{path}/{version}/referencedby?deleted={deleted}"
            self._compare_on_both(self.model.referring, (subject, version), {"deleted": deleted}, list, "GET", path)

    @rule(schema_id=st.integers(1, 10), resolved=st.booleans(), deleted=st.booleans())
    def compare_schema(self, schema_id: int, resolved: bool, deleted: bool) -> None:
        path, format_name = f"/schemas/ids/{schema_id}", "resolved" if resolved else ""
        options = {"resolved": resolved}
        call = "GET", f"{path}?format={format_name}"
        self._compare_on_both(self.model.schema, (schema_id,), options, lambda body: body["schema"], *call)
        self._compare_on_both(
            self.model.users,
            (schema_id,),
            {"deleted": deleted},
            lambda body: [(item["subject"], item["version"]) for item in body],
            "GET",
            f"{path}/versions?deleted={deleted}",
        )

    @rule(subject=subjects, item=contents, deleted=st.booleans())
    def compare_content(self, subject: str, item: Content, deleted: bool) -> None:
        body = request(item)
        path = f"/subjects/{subject}?deleted={deleted}"
        self._compare_on_both(self.model.look_up, (subject, item), {"deleted": deleted}, version_of, "POST", path, body)
        path = f"/compatibility/subjects/{subject}/versions"
        self._compare_on_both(
            self.model.compatible, (subject, item), {}, lambda found: found["is_compatible"], "POST", path, body
        )

    @rule(subject=places)
    def compare_settings(self, subject: str) -> None:
        def level(of: str) -> Outcome:
            return 200, self.model.level(of)

        def mode(of: str) -> Outcome:
            return 200, self.model.mode(of)

        query = "?defaultToGlobal=true"
        self._compare_on_both(
            level, (subject,), {}, lambda body: body["compatibilityLevel"], "GET", f"/config/{subject}{query}"
        )
        self._compare_on_both(mode, (subject,), {}, lambda body: body["mode"], "GET", f"/mode/{subject}{query}")
