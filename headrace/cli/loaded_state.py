"""Opens the commit log of the configured warehouse for commands that only read it, and reports its errors in one
line."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.command import CommandError, os_error_message, settings_from
from headrace.cli.report import check_known, select_topics
from headrace.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.loader.commit.commit_log import CommitLog
    from headrace.loader.commit.state import TopicState
    from headrace.loader.storage.protocols import Storage


@dataclass(frozen=True, slots=True)
class LoadedState:
    """The commit log and the loader's state after its newest commit."""

    settings: Settings
    log: CommitLog
    storage: Storage

    def topic(self, name: str) -> TopicState:
        """Returns the state of a loaded topic.

        Raises:
            CommandError: the topic has never been loaded.
        """
        topics = self.log.state.topics
        check_known(name, sorted(topics))
        return topics[name]

    def topics(self, patterns: Sequence[str]) -> list[str]:
        """Returns the loaded topics that match one of the patterns; all loaded topics without patterns.

        Raises:
            CommandError: no topic matches one of them.
        """
        return select_topics(patterns, self.log.state.topics)


@contextlib.contextmanager
def open_loaded_state(args: argparse.Namespace) -> Iterator[LoadedState]:
    """Yields the commit log and the state of the loader, opened without write access. In the context, expected errors
    end the command with one line."""
    from headrace.loader.commit.commit_log import CommitLog
    from headrace.loader.errors import LoaderError
    from headrace.pipeline.storage import check_warehouse_and_log, warehouse_storage

    settings = settings_from(args)
    storage = warehouse_storage(settings)
    log = CommitLog(storage.commits, read_only=True)
    try:
        check_warehouse_and_log(settings, storage, is_dry=True)
        log.check_format(writing=False)
        log.read_state()
        yield LoadedState(settings, log, storage)
    except LoaderError as error:
        raise CommandError(str(error)) from error
    except BrokenPipeError:  # of standard output: the reader, such as `head`, has closed the pipe
        raise
    except OSError as error:
        raise CommandError(os_error_message(error)) from error


@contextlib.contextmanager
def loader_errors_as_command_errors() -> Iterator[None]:
    """Converts expected errors of brokers, registry, metastore and warehouse in the context to a `CommandError` with a
    one-line message."""
    from headrace.audit.errors import AuditError
    from headrace.hive_ddl.errors import HiveDdlError
    from headrace.kafka_wire.errors import KafkaError, KafkaUnavailable
    from headrace.loader.errors import LoaderError
    from headrace.pipeline.java import JavaNotFoundError
    from headrace.registry.errors import RegistryError

    try:
        yield
    except KafkaUnavailable as error:
        remedy = "" if "; " in str(error) else "; start the broker, or correct kafka.bootstrap_servers"
        raise CommandError(f"{error}{remedy}") from error
    except (LoaderError, KafkaError, HiveDdlError, AuditError, RegistryError, JavaNotFoundError) as error:
        raise CommandError(str(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CommandError(os_error_message(error)) from error
