"""Several server processes on PostgreSQL with fifty clients each always leave a consistent database."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headrace.registry.errors import StoreError
from support.memory_directory import memory_parent
from support.permission_rows import POSTGRES_GRANTS
from support.processes import kill_with_children
from support.registry.migrated_databases import PostgresTemplate
from support.registry.registry_calls import STRING, Registry, RestResponse, registry_in_process
from support.servers.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

PROCESSES = 4
CLIENTS = 50  # of each process
T = TypeVar("T")
StartService = Callable[..., Any]


def fixed(label: object) -> str:
    return f'{{"type":"fixed","name":"F","size":4,"of":"{label}"}}'


def serve(start_service: StartService, url: str, directory: Path, *arguments: str) -> Any:
    return start_service(
        *("headrace", "registry", "serve", "--registry-listen", "127.0.0.1:0", "--data-dir", str(directory)),
        *arguments,
        # Command-line arguments are visible to all users of the machine.
        environment={"HEADRACE__REGISTRY__DATABASE_URL": url},
    )


def new_migrated_database(server: PostgresServer) -> str:
    """The URL of a migrated database."""
    from headrace.registry.storage.database import Database

    url = server.new_database()
    database = Database(url)
    database.upgrade()
    database.close()
    return url


@dataclass
class Cluster:
    registries: list[Registry]
    server: PostgresServer
    database: str

    def run_concurrently(self, work: Callable[[Registry, int], T], clients: int = CLIENTS * PROCESSES) -> list[T]:
        """Runs fifty numbered clients on each process, which start together."""
        barrier = threading.Barrier(clients)

        def run(number: int) -> T:
            barrier.wait(60)
            return work(self.registries[number % PROCESSES], number)

        with ThreadPoolExecutor(clients) as pool:
            return list(pool.map(run, range(clients)))

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return self.server.execute(statement, self.database)

    def require_consistent(self) -> None:
        require_consistent(self.rows)


INCONSISTENCIES = {
    "schemas that no version uses": "SELECT s.id FROM schemas s LEFT JOIN versions v ON v.schema_key = s.row_key "
    "WHERE v.version IS NULL",
    "subjects without versions": "SELECT name FROM subjects s LEFT JOIN versions v ON v.subject_id = s.id "
    "WHERE v.version IS NULL",
    "ids that the counter would assign again": "SELECT s.context, s.id FROM schemas s LEFT JOIN contexts c "
    "ON c.name = s.context WHERE c.next_id IS NULL OR c.next_id <= s.id",
    "contents with two ids in a context": "SELECT context, fingerprint FROM schemas "
    "GROUP BY context, fingerprint HAVING count(*) > 1",
    "references to missing versions": "SELECT r.target, r.version FROM schema_references r LEFT JOIN subjects s "
    "ON s.name = r.target LEFT JOIN versions v ON v.subject_id = s.id AND v.version = r.version "
    "WHERE v.version IS NULL",
    "live schemas that refer to deleted ones": "SELECT r.target, r.version FROM schema_references r "
    "JOIN subjects s ON s.name = r.target JOIN versions v ON v.subject_id = s.id AND v.version = r.version "
    "JOIN versions u ON u.schema_key = r.schema_key WHERE v.deleted AND NOT u.deleted",
    "more versions than the subject's revision": "SELECT s.name FROM subjects s JOIN versions v "
    "ON v.subject_id = s.id GROUP BY s.name, s.revision HAVING count(*) > s.revision",
}
"""Queries without rows in every consistent database."""


def require_consistent(rows: Callable[[str], list[tuple[Any, ...]]]) -> None:
    assert {name: found for name, query in INCONSISTENCIES.items() if (found := rows(query))} == {}


@pytest.fixture(scope="module")
def cluster(
    postgres_server: PostgresServer,
    postgres_template: PostgresTemplate,
    start_module_service: StartService,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    url, directory = postgres_template.copy(), tmp_path_factory.mktemp("cluster")
    services = [serve(start_module_service, url, directory / str(number)) for number in range(PROCESSES)]
    registries = [Registry(service.addresses["registry"]) for service in services]
    yield Cluster(registries, postgres_server, url.rpartition("/")[2])
    for service in services:
        assert service.stop() == 0
        assert [line for line in service.errors if " ERROR " in line] == []


def errors_of(responses: list[RestResponse]) -> list[str]:
    return [response.text for response in responses if response.status != 200]


def test_same_schema_under_one_subject_gets_one_id_and_version(cluster: Cluster) -> None:
    responses = cluster.run_concurrently(lambda registry, _: registry.register("same", fixed("same")))
    assert errors_of(responses) == []
    assert len({(response.json["id"], response.json["version"]) for response in responses}) == 1
    assert cluster.registries[0].get("/subjects/same/versions").json == [1]
    cluster.require_consistent()


def test_same_schema_gets_one_id_per_context(cluster: Cluster) -> None:
    contexts = ("", ":.a:", ":.b:")
    responses = cluster.run_concurrently(
        lambda r, number: r.register(f"{contexts[number % 3]}spread-{number}", fixed("spread"))
    )
    assert errors_of(responses) == []
    assert {response.json["version"] for response in responses} == {1}
    for context in range(3):
        assert len({response.json["id"] for number, response in enumerate(responses) if number % 3 == context}) == 1
    assert set(cluster.registries[1].get("/contexts").json) >= {".", ".a", ".b"}
    cluster.require_consistent()


def test_different_schemas_under_one_subject_get_consecutive_versions(cluster: Cluster) -> None:
    responses = cluster.run_concurrently(lambda registry, number: registry.register("different", fixed(number)))
    assert errors_of(responses) == []
    total = len(responses)
    assert len({response.json["id"] for response in responses}) == total
    assert sorted(response.json["version"] for response in responses) == list(range(1, total + 1))
    assert cluster.registries[2].get("/subjects/different/versions").json == list(range(1, total + 1))
    cluster.require_consistent()


def test_new_schemas_under_new_subjects_get_different_ids(cluster: Cluster) -> None:
    responses = cluster.run_concurrently(
        lambda registry, number: registry.register(f"own-{number}", fixed(f"own-{number}"))
    )
    assert errors_of(responses) == []
    assert len({response.json["id"] for response in responses}) == len(responses)
    cluster.require_consistent()


def test_one_of_many_incompatible_schemas_is_registered(cluster: Cluster) -> None:
    texts = [STRING, '"int"', '"boolean"', '{"type":"fixed","name":"F","size":1}', '{"type":"array","items":"int"}']
    responses = cluster.run_concurrently(
        lambda registry, number: registry.register("first", texts[number % len(texts)])
    )
    assert {response.status for response in responses} == {200, 409}
    assert len({response.json["id"] for response in responses if response.status == 200}) == 1
    assert cluster.registries[3].get("/subjects/first/versions").json == [1]


def test_reference_or_deletion_of_its_target_succeeds(cluster: Cluster) -> None:
    """Either the target stays and schemas refer to it, or it is deleted and they are rejected."""
    outcomes: Counter[str] = Counter()
    for round_number in range(6):
        target, name = f"target-{round_number}", f"T{round_number}"
        cluster.registries[0].registered(target, f'{{"type":"fixed","name":"{name}","size":4}}')

        def work(registry: Registry, number: int, target: str = target, name: str = name) -> tuple[str, int]:
            if number % 10 == 7:
                return "delete", registry.delete(f"/subjects/{target}").status
            references = [{"name": name, "subject": target, "version": 1}]
            text = f'{{"type":"array","items":"{name}","of":{number % 4}}}'
            return "register", registry.register(f"user-{target}-{number}", text, references=references).status

        results = cluster.run_concurrently(work, clients=CLIENTS)
        assert {status for _, status in results} <= {200, 404, 422}
        assert (("delete", 200) in results) != (("register", 200) in results)
        outcomes["deleted" if ("delete", 200) in results else "referred to"] += 1
        cluster.require_consistent()
    print(f"targets: {dict(outcomes)}")


def test_random_concurrent_operations_keep_database_consistent(cluster: Cluster) -> None:
    """Registrations, references, both kinds of deletions, configuration and reads on few subjects, from all clients."""
    seed = random.randrange(2**32)
    print(f"seed: {seed}")
    subjects = ["m-0", "m-1", ":.c:m-0", ":.c:m-1"]

    def work(registry: Registry, number: int) -> Counter[int]:
        chance = random.Random(seed + number)
        statuses: Counter[int] = Counter()
        for _ in range(8):
            subject = chance.choice(subjects)
            kind = chance.choice(["register"] * 6 + ["refer", "delete", "delete version", "configure", "look", "list"])
            response = act(registry, chance, subject, kind)
            statuses[response.status] += 1
            if response.status >= 500:
                raise AssertionError(f"{kind} {subject}: {response.text}")
        return statuses

    def act(registry: Registry, chance: random.Random, subject: str, kind: str) -> RestResponse:
        content = chance.randrange(12)
        permanent = chance.choice(["", "?permanent=true"])
        match kind:
            case "register":
                return registry.register(subject, fixed(f"mixed-{content}"))
            case "refer":
                other = chance.choice(["m-0", "m-1"])
                references = [{"name": "F", "subject": other, "version": chance.randrange(1, 5)}]
                text = f'{{"type":"array","items":"F","of":{content}}}'
                return registry.register(f"{subject}-of-{other}", text, references=references)
            case "delete":
                return registry.delete(f"/subjects/{subject}{permanent}")
            case "delete version":
                return registry.delete(f"/subjects/{subject}/versions/{chance.randrange(1, 8)}{permanent}")
            case "configure":
                return registry.put(f"/config/{subject}", {"compatibility": chance.choice(["NONE", "BACKWARD"])})
            case "look":
                return registry.post(f"/subjects/{subject}", {"schema": fixed(f"mixed-{content}")})
        return registry.get("/subjects?deleted=true")

    counted = sum(cluster.run_concurrently(work, clients=CLIENTS), Counter())
    print(f"answers: {dict(counted)}")
    assert set(counted) <= {200, 404, 409, 422}
    assert counted[200] > 0
    cluster.require_consistent()
    for subject in subjects:
        versions = cluster.registries[0].get(f"/subjects/{subject}/versions?deleted=true")
        for version in versions.json if versions.status == 200 else []:
            assert cluster.registries[1].get(f"/subjects/{subject}/versions/{version}?deleted=true").status == 200


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    server = PostgresServer(parent=memory_parent())
    yield server
    server.remove()


def test_requests_succeed_after_a_restart_of_postgres(
    own_server: PostgresServer, start_service: StartService, tmp_path: Path
) -> None:
    registry = Registry(serve(start_service, new_migrated_database(own_server), tmp_path).addresses["registry"])
    schema_id = registry.registered("s", STRING)
    assert registry.get("/readyz").status == 200
    # Several connections, all of which will break.
    with ThreadPoolExecutor(8) as pool:
        assert {
            response.status for response in pool.map(lambda n: registry.register(f"s-{n}", fixed(n)), range(16))
        } == {200}
    own_server.kill()
    assert registry.get("/readyz").status in (500, 503)
    assert registry.get("/healthz").status == 200
    during_outage = registry.register("s", fixed("away"))
    assert (during_outage.status, during_outage.json["error_code"]) == (500, 50001)
    assert "127.0.0.1" not in during_outage.text
    own_server.start()
    with ThreadPoolExecutor(8) as pool:
        responses = list(pool.map(lambda n: registry.register(f"t-{n}", fixed(n)), range(16)))
    assert errors_of(responses) == []
    assert registry.get("/readyz").status == 200
    assert registry.registered("s", STRING) == schema_id
    assert registry.get(f"/schemas/ids/{schema_id}").json["schema"] == STRING


class Writers:
    """Clients that register and delete until they are stopped, and remember all acknowledged registrations."""

    def __init__(self, registries: list[Registry], clients: int = 12) -> None:
        self.acknowledged: dict[str, int] = {}
        self.statuses: Counter[int] = Counter()
        self._ended = threading.Event()
        self._registries = registries
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def _write(self, client: int) -> None:
        registry = self._registries[client % len(self._registries)]
        number = 0
        while not self._ended.is_set():
            number += 1
            name = f"{client % 4}.{client}.{number}"
            try:
                response = registry.register(f"w-{client % 4}", fixed(name))
                # A subject that is created and deleted, so that deletions are in progress too.
                registry.register(f"gone-{client % 2}", fixed(client))
                registry.delete(f"/subjects/gone-{client % 2}")
                registry.delete(f"/subjects/gone-{client % 2}?permanent=true")
            except (OSError, ValueError, json.JSONDecodeError):
                time.sleep(0.02)
                continue
            self.statuses[response.status] += 1
            if response.status == 200:
                self.acknowledged[name] = response.json["id"]
            else:
                time.sleep(0.02)

    def wait_for(self, more: int) -> None:
        """Waits until this number of further registrations was acknowledged."""
        count_min, deadline = len(self.acknowledged) + more, time.monotonic() + 60
        while len(self.acknowledged) < count_min:
            assert time.monotonic() < deadline, dict(self.statuses)
            time.sleep(0.01)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)


def require_acknowledged(registry: Registry, acknowledged: dict[str, int]) -> None:
    for name, schema_id in acknowledged.items():
        assert registry.get(f"/schemas/ids/{schema_id}").json["schema"] == fixed(name)
        found = registry.post(f"/subjects/w-{name.partition('.')[0]}", {"schema": fixed(name)})
        assert found.status == 200
        assert found.json["id"] == schema_id
    for group in range(4):
        versions = registry.get(f"/subjects/w-{group}/versions").json
        assert versions == list(range(1, len(versions) + 1))


@pytest.mark.fault
def test_killed_postgres_leaves_a_consistent_database(
    own_server: PostgresServer, start_service: StartService, tmp_path: Path
) -> None:
    """After `kill -9` of the database during registrations all acknowledged ones exist, and requests succeed again."""
    url = new_migrated_database(own_server)
    services = [serve(start_service, url, tmp_path / str(number)) for number in range(2)]
    registries = [Registry(service.addresses["registry"]) for service in services]
    writers = Writers(registries)
    try:
        for _ in range(4):
            writers.wait_for(30)
            own_server.kill()
            time.sleep(random.random() / 5)
            own_server.start()
        writers.wait_for(30)
    finally:
        writers.end()
    require_acknowledged(registries[0], writers.acknowledged)
    require_consistent(lambda query: own_server.execute(query, url.rpartition("/")[2]))
    assert set(writers.statuses) <= {200, 500}


@pytest.mark.fault
def test_killed_registry_leaves_a_consistent_database(
    postgres_server: PostgresServer, postgres_template: PostgresTemplate, start_service: StartService, tmp_path: Path
) -> None:
    """After `kill -9` of a registry during registrations other processes continue and the database is consistent."""
    url = postgres_template.copy()
    stays = Registry(serve(start_service, url, tmp_path / "stays").addresses["registry"])
    acknowledged: dict[str, int] = {}
    for round_number in range(4):
        service = serve(start_service, url, tmp_path / str(round_number))
        writers = Writers([Registry(service.addresses["registry"]), stays])
        try:
            writers.wait_for(20 + 10 * round_number)
            kill_with_children(service.process.pid)
            writers.wait_for(20)
        finally:
            writers.end()
        acknowledged.update(writers.acknowledged)
        for name in list(acknowledged):
            # The next round uses the names again, for the same schemas, which keep their ids.
            assert stays.get(f"/schemas/ids/{acknowledged[name]}").json["schema"] == fixed(name)
        assert set(writers.statuses) <= {200}
    require_acknowledged(stays, acknowledged)
    require_consistent(lambda query: postgres_server.execute(query, url.rpartition("/")[2]))


def test_documented_privileges_suffice_and_each_is_necessary(
    postgres_server: PostgresServer, postgres_template: PostgresTemplate
) -> None:
    url = postgres_template.copy()
    database = url.rpartition("/")[2]
    postgres_server.execute("CREATE ROLE registry_server LOGIN PASSWORD 'secret'")
    postgres_server.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC", database)
    served_url = f"postgresql://registry_server:secret@127.0.0.1:{postgres_server.port}/{database}"
    try:
        for missing in (*POSTGRES_GRANTS, None):
            for grant in POSTGRES_GRANTS:
                postgres_server.execute(grant.replace("GRANT ", "REVOKE ", 1).replace(" TO ", " FROM "), database)
            for grant in POSTGRES_GRANTS:
                if grant is not missing:
                    postgres_server.execute(grant, database)
            assert serves_all_requests(served_url) == (missing is None), missing
    finally:
        postgres_server.execute("DROP OWNED BY registry_server", database)
        postgres_server.execute("DROP ROLE registry_server")


def serves_all_requests(url: str) -> bool:
    """Whether a registry starts and succeeds with every kind of change."""
    steps: list[tuple[str, str, Any]] = [
        ("POST", "/subjects/a/versions", {"schema": fixed("A")}),
        ("POST", "/subjects/b/versions", {"schema": '{"type":"array","items":"F"}', "references": [
            {"name": "F", "subject": "a", "version": 1}
        ]}),
        ("POST", "/contexts/.c/subjects/a/versions", {"schema": fixed("A")}),
        ("PUT", "/config/b", {"compatibility": "FULL"}),
        ("PUT", "/mode/b", {"mode": "READWRITE"}),
        ("GET", "/subjects", None),
        ("GET", "/readyz", None),
        ("GET", "/metrics", None),
        ("DELETE", "/mode/b", None),
        ("DELETE", "/config/b", None),
        ("DELETE", "/subjects/b", None),
        ("DELETE", "/subjects/b?permanent=true", None),
        ("DELETE", "/subjects/a/versions/1", None),
        ("DELETE", "/subjects/a?permanent=true", None),
        ("DELETE", "/contexts/.c/subjects/a", None),
        ("DELETE", "/contexts/.c/subjects/a?permanent=true", None),
        ("DELETE", "/contexts/.c", None),
    ]  # fmt: skip
    try:
        with registry_in_process(url) as registry:
            return all(registry.call(method, path, body).status < 300 for method, path, body in steps)
    except StoreError:
        return False
