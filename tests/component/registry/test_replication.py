"""A replica has the responses of its source, is read-only, and becomes writable by promotion."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from headrace.registry.access.permissions import Permission
from headrace.registry.access.required_permissions import REQUIRED_PERMISSIONS
from headrace.registry.domain import StoredSchema
from headrace.registry.errors import InvalidResponse, RegistryUnavailable, ReplicationStopped, ServiceError
from headrace.registry.replication import feed, replica
from headrace.registry.replication.feed import ReplicationRequest, ReplicationResponse, parse_response, request_json
from headrace.registry.replication.replica import (
    HOLDER_TIMEOUT_MS,
    HttpReplicationSource,
    Replica,
    RoundResult,
    promote,
)
from headrace.registry.storage.database import Database
from headrace.registry.storage.replication import ContextState, ReplicationTables
from headrace.registry.storage.repository import Repository
from support.registry.registry_calls import Registry, registry_in_process
from support.registry.registry_front import RegistryBehindFront
from support.registry.registry_model import FIXED, LIST, TARGET, content, request
from support.simulation.registry_interleavings import Interleavings, histories_of, upgraded

QUESTIONS = (
    "/contexts",
    "/subjects?subjectPrefix=:*:&deleted=true",
    "/subjects?subjectPrefix=:*:",
    "/schemas?subjectPrefix=:*:&deleted=true&latestOnly=false",
    *(
        f"/schemas/ids/{number}{more}"
        for number in range(1, 9)
        for more in ("?fetchMaxId=true", "/versions?deleted=true")
    ),
    *(f"/schemas/ids/{number}?format=resolved" for number in range(1, 9)),
    *(f"/config/{scope}" for scope in ("", "a", "b", TARGET)),
    *(
        f"/subjects/{subject}/versions/{number}?deleted=true"
        for subject in ("a", "b", TARGET)
        for number in range(1, 5)
    ),
    *(f"/subjects/{subject}/versions/latest" for subject in ("a", "b", TARGET)),
)
LOOKED_UP = [content(LIST, 1), content(LIST, 2), *(content(f'{{"type":"array","items":{text}}}') for text in FIXED)]


class RegistrySource:
    """The source registry. `before` is called with each request."""

    def __init__(self, registry: Registry) -> None:
        self.url = "http://source"
        self.registry = registry
        self.before: Callable[[ReplicationRequest], None] = lambda _: None
        self.requests: list[ReplicationRequest] = []

    def fetch(self, replication_request: ReplicationRequest) -> ReplicationResponse:
        self.before(replication_request)
        self.requests.append(replication_request)
        response = self.registry.post("/replication", request_json(replication_request))
        assert response.status == 200, response.text
        return parse_response(response.json, self.url)


def responses_of(registry: Registry) -> dict[str, tuple[int, str]]:
    """Responses to all requests except those for modes, which differ in a replica."""
    requests = [registry.get(path) for path in QUESTIONS]
    requests += [registry.post("/subjects/a?deleted=true", request(item)) for item in LOOKED_UP]
    names = [*QUESTIONS, *(str(item) for item in LOOKED_UP)]
    return {name: (found.status, found.text) for name, found in zip(names, requests, strict=True)}


class Replicated(Interleavings):
    """Replicates a registry at random times and then compares the responses of both."""

    def __init__(self, new_database: Callable[[], str]) -> None:
        super().__init__(new_database)
        url = new_database()
        self.database = upgraded(url)
        self.replica_front = RegistryBehindFront(url)
        self.clock = itertools.count(1_000_000)
        self.is_restored = False
        self.replica = Replica(RegistrySource(self.fronts[0]), self.database, lambda: next(self.clock), "me")

    @rule()
    def replicate(self) -> None:
        rounds = [self.replica.run_round() for _ in range(3)]
        assert rounds[-1] is RoundResult.UNCHANGED
        assert responses_of(self.replica_front) == responses_of(self.fronts[0])

    @rule()
    def restart(self) -> None:
        self.replica = Replica(RegistrySource(self.fronts[0]), self.database, lambda: next(self.clock), "me")

    @precondition(lambda self: self.copied is not None)
    @rule()
    def put_copy_back(self) -> None:
        super().put_copy_back()
        self.is_restored = True

    def _contexts(self) -> Iterator[list[ContextState]]:
        """The contexts of the source and of the replica."""
        with closing(upgraded(self.url)) as database:
            yield database.read(lambda repository: ReplicationTables(repository).context_states())
        yield self.database.read(lambda repository: ReplicationTables(repository).context_states())

    def _written_by(self, registry: Registry) -> list[Any]:
        """Registers a new schema, whatever the settings were; returns status, id and version."""
        assert registry.put("/mode/a", {"mode": "READWRITE"}).status == 200
        assert registry.put("/config/a", {"compatibility": "NONE", "alias": None}).status == 200
        response = registry.register("a", '{"type":"enum","name":"E","symbols":["A"]}')
        return [response.status, response.json["id"], response.json["version"]]

    def teardown(self) -> None:
        self.replicate()
        # Ids of a history that the source has lost are not reused by the replica, because clients may have cached them.
        source, replica_ids = ({one.name: one.next_id for one in states} for states in self._contexts())
        assert all(
            source[name] == replica_ids[name] or (self.is_restored and source[name] < replica_ids[name])
            for name in source
        )
        promote(self.database, next(self.clock))
        # From replica_ids on both registries behave the same, including ids and versions.
        ids = [self._written_by(registry) for registry in (self.fronts[0], self.replica_front)]
        assert ids[0] == [200, source["."], ids[1][2]]
        assert ids[1][:2] == [200, replica_ids["."]]
        self.replica_front.close()
        self.database.close()
        super().teardown()


def test_replica_has_responses_of_its_source(new_database: Callable[[], str]) -> None:
    run_state_machine_as_test(lambda: Replicated(new_database), settings=histories_of(new_database()))


@pytest.fixture
def source(new_database: Callable[[], str]) -> Iterator[RegistrySource]:
    with registry_in_process(new_database()) as registry:
        yield RegistrySource(registry)


@dataclass
class Site:
    """The second data centre: its database, a registry on that database, and a clock that the test sets."""

    database: Database
    registry: Registry
    now_ms: int = 1_000_000

    def replica(self, source: RegistrySource, holder: str = "me") -> Replica:
        return Replica(source, self.database, lambda: self.now_ms, holder)


@pytest.fixture
def site(new_database: Callable[[], str]) -> Iterator[Site]:
    url = new_database()
    database = upgraded(url)
    site = Site(database, Registry(""))
    with registry_in_process(url, now_ms=lambda: site.now_ms) as registry:
        site.registry = registry
        yield site
    database.close()


def fixed(number: int) -> str:
    return f'{{"type":"fixed","name":"F{number}","size":{number}}}'


def test_replica_rejects_changes_until_promotion(source: RegistrySource, site: Site) -> None:
    source.registry.registered("s", '"string"')
    source.registry.registered("gone", '"int"')
    source.registry.delete("/subjects/gone")
    source.registry.put("/config/s", {"compatibility": "NONE"})
    assert source.registry.put("/mode/s?force=true", {"mode": "IMPORT"}).status == 200
    assert site.replica(source).run_round() is RoundResult.CHANGED
    bodies: dict[str, Any] = {"config": {"compatibility": "FULL"}, "mode": {"mode": "READWRITE"}}
    changes = [
        (method, route) for (method, route), need in REQUIRED_PERMISSIONS.items() if need.permission > Permission.READ
    ]
    assert len(changes) >= 12
    before = responses_of(site.registry)
    for subject, query in itertools.product(("s", "gone"), ("?force=true&permanent=true", "")):
        for method, route in changes:
            path = route.format(subject=subject, version=1, context=".new")
            body = bodies.get(path.split("/")[1], {"schema": fixed(1), "id": 9})
            response = site.registry.call(method, path + query, body)
            assert response.status in (404, 422), (method, path, response.text)
    assert responses_of(site.registry) == before
    status, code, message = site.registry.put("/mode", {"mode": "READWRITE"}).error
    assert (status, code, "http://source" in message) == (422, 42205, True)
    # Registering an existing schema finds it, as in any read-only registry.
    assert site.registry.registered("s", '"string"') == 1
    promote(site.database, site.now_ms)
    assert site.registry.get("/mode/s").json == {"mode": "IMPORT"}
    assert site.registry.get("/mode").json == {"mode": "READWRITE"}
    assert site.registry.registered("t", fixed(1)) == 3


def test_promoted_replica_has_modes_and_ids_of_its_source(source: RegistrySource, site: Site) -> None:
    for number in (1, 2, 3):
        source.registry.registered(f"s{number}", fixed(number))
    eu = "/subjects/%3A.eu%3Ae"
    source.registry.registered("%3A.eu%3Ae", fixed(4))
    for path in ("/subjects/s3", "/subjects/s3?permanent=true", eu, f"{eu}?permanent=true"):
        assert source.registry.delete(path).status == 200
    source.registry.put("/mode/%3A.__GLOBAL%3A", {"mode": "FORWARD"})
    replication = site.replica(source)
    assert replication.run_round() is RoundResult.CHANGED
    assert replication.run_round() is RoundResult.UNCHANGED
    assert site.registry.get("/mode/%3A.__GLOBAL%3A").json == {"mode": "READONLY_OVERRIDE"}
    promote(site.database, site.now_ms)
    assert replication.run_round() is RoundResult.PROMOTED
    assert site.registry.get("/mode/%3A.__GLOBAL%3A").json == {"mode": "FORWARD"}
    assert site.registry.delete("/mode/%3A.__GLOBAL%3A").status == 200
    # The third id was assigned to a deleted schema, and so was the first id of the other context.
    assert site.registry.registered("t", fixed(5)) == 4
    assert site.registry.registered("%3A.eu%3At", fixed(5)) == 2
    assert site.registry.get("/contexts").json == source.registry.get("/contexts").json


def test_added_versions_do_not_increase_registry_revision(source: RegistrySource, site: Site) -> None:
    source.registry.put("/config", {"compatibility": "NONE"})
    source.registry.registered("s", fixed(1))
    replication = site.replica(source)
    replication.run_round()

    def revision() -> int:
        assert replication.run_round() is RoundResult.CHANGED
        return site.database.read(lambda repository: repository.revision().number)

    before = site.database.read(lambda repository: repository.revision().number)
    for number in (2, 3):
        source.registry.registered("s", fixed(number))
    source.registry.registered("t", fixed(4))
    assert revision() == before
    assert responses_of(site.registry) == responses_of(source.registry)
    changes: list[Callable[[], Any]] = [
        lambda: source.registry.put("/config/s", {"compatibility": "BACKWARD"}),
        lambda: source.registry.delete("/mode/s"),
        lambda: source.registry.delete("/subjects/s/versions/2"),
        lambda: source.registry.delete("/subjects/s/versions/2?permanent=true"),
        lambda: source.registry.delete("/subjects/t"),
        # Registering a schema again restores its soft-deleted versions, in another subject and in the same.
        lambda: source.registry.registered("u", fixed(4)),
        lambda: source.registry.registered("t", fixed(5)),
        lambda: source.registry.registered("r", '"F5"', references=[{"name": "F5", "subject": "t", "version": 2}]),
    ]
    source.registry.put("/mode/s", {"mode": "READWRITE"})
    before = revision()
    for number, change in enumerate(changes):
        change()
        after = revision()
        assert after > before, number
        before = after
    assert responses_of(site.registry) == responses_of(source.registry)


def test_late_references_are_replicated_with_their_schemas(source: RegistrySource, site: Site) -> None:
    source.registry.put("/config", {"compatibility": "NONE"})
    source.registry.registered("target", fixed(1))
    source.registry.registered("s", '"F1"', references=[{"name": "F1", "subject": "target", "version": 1}])
    late = iter((fixed(2),))

    def register_more(replication_request: ReplicationRequest) -> None:
        if "s" in replication_request.subjects and (text := next(late, None)):
            version = source.registry.register("later", text).json["version"]
            reference = {"name": "F2", "subject": "later", "version": version}
            assert source.registry.register("s", '"F2"', references=[reference]).status == 200

    source.before = register_more
    replication = site.replica(source)
    replication.run_round()
    assert site.registry.get("/subjects/s/versions").json == [1, 2]
    path = "/subjects/s/versions/2?format=resolved"
    assert "fixed" in site.registry.get(path).text
    replication.run_round()
    assert responses_of(site.registry) == responses_of(source.registry)


@pytest.mark.parametrize(("name", "value"), [("SUBJECTS_MAX", 2), ("SCHEMAS_MAX", 2), ("RESPONSE_CHARS_MAX", 90)])
def test_large_registry_is_replicated_in_parts(
    source: RegistrySource, site: Site, monkeypatch: pytest.MonkeyPatch, name: str, value: int
) -> None:
    for number in range(1, 8):
        source.registry.registered(f"s{number}", fixed(number))
        source.registry.registered(f"%3A.eu%3As{number}", fixed(number + 10))
    for module in (feed, replica):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, value)
    replication = site.replica(source)
    assert replication.run_round() is RoundResult.CHANGED
    assert len(source.requests) > 6
    assert replication.run_round() is RoundResult.UNCHANGED
    path = "/schemas?subjectPrefix=:*:"
    assert site.registry.get(path).text == source.registry.get(path).text
    assert len(site.registry.get(path).json) == 14


def test_response_reads_few_more_schemas_than_it_has(source: RegistrySource, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 8):
        source.registry.registered(f"s{number}", fixed(number))
    read: list[int] = []

    def recorded(repository: Repository, context: str, ids: Sequence[int]) -> list[StoredSchema]:
        read.extend(ids)
        return read_schemas(repository, context, ids)

    read_schemas = Repository.schemas_by_id
    monkeypatch.setattr(Repository, "schemas_by_id", recorded)
    monkeypatch.setattr(feed, "SCHEMAS_PER_QUERY", 2)
    monkeypatch.setattr(feed, "RESPONSE_CHARS_MAX", 3 * len(fixed(1)))
    response = source.fetch(ReplicationRequest(ids={".": tuple(range(1, 8))}))
    assert [item.schema.schema_id for item in response.schemas] == [1, 2, 3]
    assert read == [1, 2, 3, 4]
    monkeypatch.setattr(feed, "RESPONSE_CHARS_MAX", 1)
    response = source.fetch(ReplicationRequest(ids={".": (2, 3)}))
    assert [item.schema.schema_id for item in response.schemas] == [2], "at least one, or replication would never end"


def test_replica_requests_changed_subjects_only(source: RegistrySource, site: Site) -> None:
    for number in range(1, 6):
        source.registry.registered(f"s{number}", fixed(number))
    replication = site.replica(source)
    replication.run_round()
    source.requests.clear()
    assert replication.run_round() is RoundResult.UNCHANGED
    source.registry.put("/config/s3", {"compatibility": "NONE"})
    source.registry.registered("s3", fixed(6))
    assert replication.run_round() is RoundResult.CHANGED
    assert [(item.subjects, dict(item.ids)) for item in source.requests] == [
        ((), {}),
        ((), {}),
        (("s3",), {}),
        ((), {".": (6,)}),
    ]
    # A starting process requests all subjects, and no schema that its database has.
    source.requests.clear()
    assert site.replica(source).run_round() is RoundResult.CHANGED
    assert [dict(item.ids) for item in source.requests] == [{}, {}]


def test_settings_are_replicated_and_removed(source: RegistrySource, site: Site) -> None:
    scopes = ("", "s", "%3A.eu%3A", "%3A.__GLOBAL%3A")
    replication = site.replica(source)

    def settings() -> list[str]:
        rounds = replication.run_round(), replication.run_round()
        assert rounds == (RoundResult.CHANGED, RoundResult.UNCHANGED)
        found = [
            [registry.get(f"/config/{scope}").text for scope in scopes] for registry in (source.registry, site.registry)
        ]
        assert found[0] == found[1]
        return found[1]

    source.registry.registered("s", '"string"')
    complete = {
        "compatibility": "FULL",
        "normalize": True,
        "compatibilityGroup": "major",
        "defaultMetadata": {"properties": {"owner": "me"}, "tags": {"**": ["PII"]}, "sensitive": ["owner"]},
        "overrideRuleSet": {"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL"}]},
    }
    before = settings()
    for scope in scopes:
        assert source.registry.put(f"/config/{scope}", complete).status == 200
    assert source.registry.put("/mode/s", {"mode": "READONLY"}).status == 200
    assert all("major" in text and "owner" in text and "CEL" in text for text in settings())
    assert source.registry.put("/mode/s", {"mode": "READWRITE"}).status == 200
    assert source.registry.put("/config/s", {"compatibility": "NONE", "alias": "t"}).status == 200
    assert "NONE" in settings()[1]
    for scope in scopes:
        assert source.registry.delete(f"/config/{scope}").status == 200
    assert source.registry.delete("/mode/s").status == 200
    assert settings() == before
    promote(site.database, site.now_ms)
    assert site.registry.get("/mode/s").status == 404


def test_content_with_two_ids_is_replicated(source: RegistrySource, site: Site) -> None:
    assert source.registry.put("/mode", {"mode": "IMPORT"}).status == 200
    for name, number in (("a", 5), ("b", 6), (TARGET, 5)):
        assert source.registry.register(name, fixed(1), id=number, version=1).status == 200
    replication = site.replica(source)
    replication.run_round()
    for name, number in (("a", 8), ("b", 5)):
        assert source.registry.register(name, fixed(1), id=number, version=2).status == 200
    replication.run_round()
    assert responses_of(site.registry) == responses_of(source.registry)


def test_reassigned_id_causes_full_replication(source: RegistrySource, site: Site) -> None:
    for name, number in (("s", 1), ("t", 2), ("u", 3)):
        source.registry.registered(name, fixed(number))
    replication = site.replica(source)
    replication.run_round()
    for name in ("s", "t"):
        for query in ("", "?permanent=true"):
            assert source.registry.delete(f"/subjects/{name}{query}").status == 200
    assert source.registry.put("/mode/t", {"mode": "IMPORT"}).status == 200
    assert source.registry.register("t", fixed(9), id=1, version=1).status == 200
    rounds = [replication.run_round() for _ in range(3)]
    assert rounds == [RoundResult.CHANGED, RoundResult.CHANGED, RoundResult.UNCHANGED]
    assert responses_of(site.registry) == responses_of(source.registry)
    assert site.registry.get("/schemas/ids/1").json["schema"] == fixed(9)
    assert site.registry.get("/subjects").json == ["t", "u"]


class DamagingSource(RegistrySource):
    def fetch(self, replication_request: ReplicationRequest) -> ReplicationResponse:
        response = super().fetch(replication_request)
        damaged = tuple(
            replace(item, schema=replace(item.schema, content=replace(item.schema.content, text=fixed(7))))
            for item in response.schemas
        )
        return replace(response, schemas=damaged)


def test_damaged_schema_is_not_applied(source: RegistrySource, site: Site) -> None:
    source.registry.registered("s", fixed(1))
    replication = site.replica(DamagingSource(source.registry))
    for _ in range(3):
        replication.run_round()
    assert site.registry.get("/subjects").json == []


def test_one_of_two_processes_replicates_until_it_ends(source: RegistrySource, site: Site) -> None:
    source.registry.registered("s", fixed(1))
    first, second = site.replica(source, "first"), site.replica(source, "second")
    assert first.run_round() is RoundResult.CHANGED
    site.now_ms += HOLDER_TIMEOUT_MS - 1
    assert second.run_round() is RoundResult.WAITING
    assert first.run_round() is RoundResult.UNCHANGED
    site.now_ms += HOLDER_TIMEOUT_MS - 1
    assert second.run_round() is RoundResult.WAITING
    source.registry.registered("t", fixed(2))
    site.now_ms += 1
    assert second.run_round() is RoundResult.CHANGED
    assert first.run_round() is RoundResult.WAITING
    assert site.registry.get("/subjects").json == ["s", "t"]


def test_one_of_two_processes_that_start_together_waits(source: RegistrySource, site: Site) -> None:
    source.registry.registered("s", fixed(1))
    first, second = site.replica(source, "first"), site.replica(source, "second")

    def let_first_process_start(_: ReplicationRequest) -> None:
        source.before = lambda _: None
        assert first.run_round() is RoundResult.CHANGED

    source.before = let_first_process_start
    assert second.run_round() is RoundResult.WAITING
    assert site.registry.get("/subjects").json == ["s"]


def test_response_from_before_a_takeover_is_not_applied(source: RegistrySource, site: Site) -> None:
    source.registry.registered("s", fixed(1))
    first, second = site.replica(source, "first"), site.replica(source, "second")
    assert first.run_round() is RoundResult.CHANGED
    source.registry.registered("t", fixed(2))

    def let_second_process_take_over(replication_request: ReplicationRequest) -> None:
        if replication_request.ids:
            source.before = lambda _: None
            site.now_ms += HOLDER_TIMEOUT_MS
            assert second.run_round() is RoundResult.CHANGED
            source.registry.delete("/subjects/t")
            assert second.run_round() is RoundResult.CHANGED

    source.before = let_second_process_take_over
    assert first.run_round() is RoundResult.WAITING
    assert site.registry.get("/subjects").json == ["s"]
    site.now_ms += HOLDER_TIMEOUT_MS
    assert first.run_round() is RoundResult.CHANGED
    assert responses_of(site.registry) == responses_of(source.registry)


def test_concurrent_update_sees_update_of_first_process(
    source: RegistrySource, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.registry.registered("s", fixed(1))
    first, second = site.replica(source, "first"), site.replica(source, "second")
    assert first.run_round() is RoundResult.CHANGED
    source.registry.registered("t", fixed(2))
    site.now_ms += HOLDER_TIMEOUT_MS
    is_writing, may_end, has_requested = threading.Event(), threading.Event(), threading.Event()
    original_apply_update = replica.apply_update

    def slow_for_the_first(repository: Repository, update: Any) -> None:
        if not is_writing.is_set():
            is_writing.set()
            assert may_end.wait(60)
        original_apply_update(repository, update)

    def notice_request(replication_request: ReplicationRequest) -> None:
        if is_writing.is_set() and replication_request.ids:
            has_requested.set()

    monkeypatch.setattr(replica, "apply_update", slow_for_the_first)
    source.before = notice_request
    with ThreadPoolExecutor(2) as threads:
        second_round = threads.submit(second.run_round)
        assert is_writing.wait(60)
        late = threads.submit(first.run_round)
        assert has_requested.wait(60)
        time.sleep(0.2)  # until the second process waits for the transaction of the first
        may_end.set()
        assert (second_round.result(60), late.result(60)) == (RoundResult.CHANGED, RoundResult.WAITING)
    assert responses_of(site.registry) == responses_of(source.registry)


def test_promotion_during_a_round_wins(source: RegistrySource, site: Site) -> None:
    source.registry.registered("s", fixed(1))
    replication = site.replica(source)
    replication.run_round()
    source.registry.registered("t", fixed(2))

    def promote_meanwhile(replication_request: ReplicationRequest) -> None:
        if replication_request.ids:
            promote(site.database, site.now_ms)

    source.before = promote_meanwhile
    assert replication.run_round() is RoundResult.PROMOTED
    assert site.registry.get("/subjects").json == ["s"]


def test_replication_lag(source: RegistrySource, site: Site) -> None:
    def lag_s() -> str | None:
        lines = site.registry.get("/metrics").text.splitlines()
        name = "headrace_registry_replication_lag_seconds "
        return next((line.removeprefix(name) for line in lines if line.startswith(name)), None)

    assert lag_s() is None
    replication = site.replica(source)
    replication.run_round()
    site.now_ms += 2_500
    assert lag_s() == "2.5"

    def unreachable(_: ReplicationRequest) -> None:
        site.now_ms += 1_000
        raise RegistryUnavailable("http://source", "refused")

    source.before = unreachable
    with pytest.raises(RegistryUnavailable):
        replication.run_round()
    assert lag_s() == "3.5"
    source.before = lambda _: setattr(site, "now_ms", site.now_ms + 400)
    replication.run_round()
    assert lag_s() == "0.4", "as of when it was requests, not of when the answer came"
    promoted = promote(site.database, site.now_ms)
    assert promoted.lag_s(site.now_ms) == 0.4
    assert lag_s() is None


def test_replica_requires_empty_database_and_the_same_source(
    source: RegistrySource, site: Site, new_database: Callable[[], str]
) -> None:
    with registry_in_process(new_database()) as other:
        other.registered("own", fixed(1))
        with pytest.raises(ReplicationStopped, match="http://source"):
            site.replica(RegistrySource(site.registry)).run_round()
        assert site.registry.registered("s", fixed(1)) == 1
        with pytest.raises(ReplicationStopped, match=r"\b1 subject"):
            site.replica(source).run_round()
        for query in ("", "?permanent=true"):
            site.registry.delete(f"/subjects/s{query}")
        assert site.replica(source).run_round() is RoundResult.CHANGED
        with pytest.raises(ReplicationStopped, match=other.post("/replication", {}).json["source"]):
            site.replica(RegistrySource(other)).run_round()
    promote(site.database, site.now_ms)
    with pytest.raises(ReplicationStopped):
        promote(site.database, site.now_ms)
    assert site.replica(source).run_round() is RoundResult.PROMOTED


def test_source_of_another_release_is_rejected(source: RegistrySource) -> None:
    valid = source.registry.post("/replication", {}).json
    for response, named in (
        ({**valid, "format": 2}, r"http://source.*\bformat 2\b"),
        ({**valid, "position": "1.2"}, "http://source"),
        ([], "http://source"),
    ):
        with pytest.raises(InvalidResponse, match=named):
            parse_response(response, "http://source")


class FailingClient:
    url = "http://source"

    def __init__(self, status: int) -> None:
        self.status = status

    def call(self, *_: Any, **__: Any) -> Any:
        raise ServiceError("no", status=self.status)


def test_source_without_replication_is_rejected() -> None:
    with pytest.raises(ReplicationStopped, match=FailingClient.url):
        HttpReplicationSource(FailingClient(404)).fetch(ReplicationRequest())
    with pytest.raises(ServiceError) as refused:
        HttpReplicationSource(FailingClient(503)).fetch(ReplicationRequest())
    assert refused.value.status == 503


def test_invalid_replication_requests_are_rejected(source: RegistrySource) -> None:
    for body in ({"seen": 1}, {"subjects": ["a\u0000"]}, {"ids": {".": ["x"]}}, {"ids": {".\n": [1]}}):
        assert source.registry.post("/replication", body).status == 400
    assert source.registry.post("/replication", {"subjects": ["none"], "ids": {".x": [1]}}).json["schemas"] == []
