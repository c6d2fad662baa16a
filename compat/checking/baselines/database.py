"""Schemas in the database of a Headrace registry, read without a running server: the registry's API runs in this
process.

The results equal those of the registry, because both run the same application. While schemas are read, the API listens
on a random port of the loopback interface.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from wsgiref.simple_server import WSGIRequestHandler, make_server

from headrace.compat.check_result import FailureKind
from headrace.compat.checking.baselines.base import BaselineFailed, CandidateSchema, LevelChoice, VersionHistory
from headrace.compat.checking.baselines.registry import AllNewPolicy, RegistryBaseline
from headrace.compat.checking.scope import FileScope
from headrace.registry.client import RegistryClient
from headrace.registry.errors import RegistryError
from headrace.settings import Settings


class DatabaseBaseline:
    """The versions in a registry's database, as the baseline to which the checked files are compared.

    Args:
        url: SQLAlchemy URL; "" for the URL of the settings.
        all_new_policy: whether the check may continue if the registry has none of the checked subjects.
    """

    def __init__(self, settings: Settings, url: str, all_new_policy: AllNewPolicy = AllNewPolicy.ALLOW) -> None:
        self._all_new_policy = all_new_policy
        self._settings = settings
        self._url = url or settings.registry.database_url or f"sqlite:///{settings.data_dir / 'registry.db'}"

    @property
    def name(self) -> str:
        return "registry database"

    def histories(self, candidates: Sequence[CandidateSchema], choice: LevelChoice) -> Sequence[VersionHistory]:
        with self._baseline() as baseline:
            return baseline.histories(candidates, choice)

    def find_equal_version(self, candidate: CandidateSchema, text: str) -> str:
        with self._baseline() as baseline:
            return baseline.find_equal_version(candidate, text)

    def deleted_files(self, scope: FileScope) -> Sequence[tuple[str, str]]:
        return ()

    @contextmanager
    def _baseline(self) -> Iterator[RegistryBaseline]:
        try:
            with self._served() as url:
                yield RegistryBaseline(RegistryClient(url), self.name, self._all_new_policy)
        except RegistryError as error:
            raise BaselineFailed.from_reason(FailureKind.REGISTRY, self.name, str(error)) from None

    @contextmanager
    def _served(self) -> Iterator[str]:
        from headrace.registry.api.app import create_app
        from headrace.registry.storage.database import Database

        database = Database(self._url)
        try:
            database.check()
            app = create_app(database, default_level=self._settings.registry.compatibility, mutable_modes=False)
            with make_server("127.0.0.1", 0, app, handler_class=_SilentRequestHandler) as server:
                threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
                try:
                    yield f"http://127.0.0.1:{server.server_port}"
                finally:
                    server.shutdown()
        finally:
            database.close()


class _SilentRequestHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass
