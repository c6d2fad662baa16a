"""The privileges in Hive in docs/permissions.md suffice, and each is necessary: HiveServer2 with SQL-standard
authorization."""

from __future__ import annotations

import getpass
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from pyhive import hive

from support.hive.hive_server import HiveServer
from support.loader.load_world import LoadWorld
from support.permission_rows import HIVE, LOADER, READER, FileRow, file_rows

pytestmark = [pytest.mark.hive, pytest.mark.timeout(1200)]

OWNED_DATABASES = DATABASE, QUARANTINE, CATALOGUE = file_rows(HIVE, LOADER)
LOADER_USER = getpass.getuser()
"""The loader's user in Hive. Hive requires permissions on the directories of tables for a user of this name."""
OTHER_USER = "nofiles"
"""A user without permissions on files. Hive requires no such user of the system."""
PLUGIN = "org.apache.hadoop.hive.ql.security.authorization.plugin.sqlstd.SQLStdHiveAuthorizerFactory"
PROPERTIES = {
    "hive.server2.authentication": "NONE",
    "hive.security.authorization.enabled": "true",
    "hive.security.authorization.manager": PLUGIN,
    "hive.security.authenticator.manager": "org.apache.hadoop.hive.ql.security.SessionStateUserAuthenticator",
    "hive.users.in.admin.role": "admin",
}
COUNT = "SELECT count(id) FROM headrace.orders"


class SecuredHive:
    """A HiveServer2 with authorization, and loads through this server.

    Attributes:
        world: the warehouse and the messages of the loads.
    """

    def __init__(self, directory: Path) -> None:
        self._server = HiveServer(directory / "server", PROPERTIES)
        try:
            self.world = LoadWorld(directory / "world", metastore=False)
        except BaseException:
            self._server.stop()
            raise

    def close(self) -> None:
        self.world.close()
        self._server.stop()

    def load(self, user: str = LOADER_USER) -> CompletedProcess[str]:
        """Runs a load with this user in Hive."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEADRACE__HIVE__SERVER_USER", user)
            return self.world.load("--hive-executor", f"hive://{self._server.address}")

    def run(self, user: str, *statements: str) -> list[Any]:
        """Runs statements in one session, and returns the rows of the last one."""
        host, _, port = self._server.address.rpartition(":")
        with closing(hive.connect(host, int(port), username=user, auth="NONE")) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def refusal(self, user: str, statement: str) -> str:
        """Runs a statement that must fail, and returns the error message."""
        with pytest.raises(hive.OperationalError) as caught:
            self.run(user, statement)
        return str(caught.value)

    def grant(self, row: FileRow, user: str) -> None:
        """Grants the privilege of a row to this user instead of the page's example."""
        self.run("admin", "SET ROLE ADMIN", row.grant.replace("USER loader", f"USER {user}"))

    @contextmanager
    def with_owner(self, user: str, databases: Sequence[FileRow]) -> Iterator[None]:
        """Makes this user the owner of databases, and at the end the loader's user again."""
        for row in databases:
            self.grant(row, user)
        try:
            yield
        finally:
            for row in databases:
                self.grant(row, LOADER_USER)

    def load_without_findings(self) -> None:
        done = self.load()
        assert (done.returncode, "note" in done.stdout) == (0, False), done.stdout + done.stderr

    def count(self, table: str) -> int:
        ((rows,),) = self.run(LOADER_USER, f"SELECT count(*) FROM {table}")
        return int(rows)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredHive]:
    with closing(SecuredHive(tmp_path_factory.mktemp("secured"))) as secured:
        for row in OWNED_DATABASES:
            secured.run("admin", "SET ROLE ADMIN", f"CREATE DATABASE {row.grant.split()[2]}")
            secured.grant(row, LOADER_USER)
        secured.world.produce("orders", 10)
        secured.load_without_findings()
        yield secured


@pytest.mark.parametrize("row", [DATABASE, QUARANTINE], ids=["headrace", "headrace_quarantine"])
def test_load_creates_tables_only_in_databases_that_it_owns(secured: SecuredHive, row: FileRow) -> None:
    database = row.grant.split()[2]
    topic = f"new_in_{database}"
    secured.world.produce(topic, 10)
    with secured.with_owner("admin", [row]):
        refused = secured.load()
    assert refused.returncode == 1
    assert f"PROBLEM: {topic}: the Hive metastore refused the new table {database}.{topic}" in refused.stdout
    assert "OBJECT OWNERSHIP" in refused.stdout
    secured.load_without_findings()
    assert (secured.count(f"headrace.{topic}"), secured.count(f"headrace_quarantine.{topic}")) == (10, 1)


def test_load_creates_the_catalogue_only_in_a_database_that_it_owns(secured: SecuredHive) -> None:
    secured.run(LOADER_USER, "DROP TABLE headrace_catalog.tables", "DROP TABLE headrace_catalog.columns")
    shutil.rmtree(secured.world.warehouse / "_catalog")
    secured.world.produce("orders", 10)
    with secured.with_owner("admin", [CATALOGUE]):
        refused = secured.load()
    assert refused.returncode == 0
    assert "note: the catalogue headrace_catalog was not updated" in refused.stdout
    assert "OBJECT OWNERSHIP" in refused.stdout
    secured.load_without_findings()
    assert secured.count("headrace_catalog.tables") == len(secured.world.produced)


def test_loader_needs_permissions_on_the_directories_of_tables(secured: SecuredHive) -> None:
    secured.world.produce("without_files", 10)
    with secured.with_owner(OTHER_USER, OWNED_DATABASES):
        refused = secured.load(OTHER_USER)
    assert refused.returncode == 1
    assert "[INSERT, DELETE] on Object [type=LOCAL_URI" in refused.stdout
    secured.load_without_findings()


def test_reader_needs_select(secured: SecuredHive) -> None:
    (row,) = file_rows(HIVE, READER)
    rows = [(len(secured.world.produced["orders"].rows),)]
    for statement in (COUNT, "DESCRIBE headrace.orders"):
        assert "[SELECT] on Object" in secured.refusal("analyst", statement)
    secured.run(LOADER_USER, row.grant)
    assert secured.run("analyst", COUNT) == rows
    assert secured.run("analyst", "DESCRIBE headrace.orders")
    assert "OBJECT OWNERSHIP" in secured.refusal("analyst", "DROP TABLE headrace.orders")
    secured.run(LOADER_USER, row.grant.replace("GRANT", "REVOKE").replace(" TO ", " FROM "))
    assert "[SELECT] on Object" in secured.refusal("analyst", COUNT)
