"""What the commands that read commits share: the log of the settings' warehouse, and what can be wrong with it."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.command import CommandError, settings_from
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.loader.commit.commit_log import CommitLog
    from headrace.loader.commit.state import TopicState
    from headrace.loader.storage.protocols import Storage


@dataclass(frozen=True, slots=True)
class LoadedState:
    """`log` has read its newest state."""

    settings: Settings
    log: CommitLog
    storage: Storage

    def topic(self, name: str) -> TopicState:
        """
        Raises:
            CommandError: nothing of the topic has been loaded.
        """
        topics = self.log.state.topics
        if name not in topics:
            known = ", ".join(sorted(topics)) or "none yet"
            raise CommandError(f"nothing of topic {name} has been loaded; loaded topics: {known}")
        return topics[name]


@contextlib.contextmanager
def open_loaded_state(args: argparse.Namespace) -> Iterator[LoadedState]:
    """While open, what keeps commits from being read becomes the one line that ends a command."""
    from headrace.loader.commit.commit_log import CommitLog
    from headrace.loader.errors import LoaderError
    from headrace.pipeline.storage import check_warehouse_and_log, warehouse_storage

    settings = settings_from(args)
    storage = warehouse_storage(settings)
    log = CommitLog(storage.commits, looks_only=True)
    try:
        check_warehouse_and_log(settings, storage, is_dry=True)
        log.check_format(writing=False)
        log.read_state()
        yield LoadedState(settings, log, storage)
    except LoaderError as error:
        raise CommandError(str(error)) from error
    except BrokenPipeError:  # of our own output: `| head` has what it wants
        raise
    except OSError as error:
        raise CommandError(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}") from error


@contextlib.contextmanager
def loader_errors_as_command_errors() -> Iterator[None]:
    """While open, what keeps a command from reaching brokers, registry, metastore or warehouse becomes its one line."""
    from headrace.audit.errors import AuditError
    from headrace.hive_ddl.errors import HiveDdlError
    from headrace.kafka_wire.errors import KafkaError, KafkaUnavailable
    from headrace.loader.errors import LoaderError
    from headrace.pipeline.java import JavaNotFoundError
    from headrace.registry.errors import RegistryError

    try:
        yield
    except KafkaUnavailable as error:
        raise CommandError(f"{error}; start it, with `headrace up` here, or set kafka.bootstrap_servers") from error
    except (LoaderError, KafkaError, HiveDdlError, AuditError, RegistryError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}") from error
