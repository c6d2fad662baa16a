"""Brings the Hive tables of a topic to its load schema, before any file with that schema becomes visible."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from headrace.hive_ddl.errors import ForeignTable, MetastoreUnavailable, StaleRevision, StatementRefused
from headrace.hive_ddl.executors.base import Executor
from headrace.hive_ddl.ops import Op, ReplaceView, SetProperties
from headrace.hive_ddl.plan import plan_table, plan_view
from headrace.hive_ddl.render import view_revision
from headrace.hive_ddl.table import (
    COMMENT,
    REVISION,
    SCHEMA_DIRECTORY,
    VIEW_REFUSED,
    TableState,
    desired_table,
    schema_file_name,
)
from headrace.loader.apply.base import Step
from headrace.loader.apply.engine import SCHEMA
from headrace.loader.apply.layout import PARTITION_COLUMNS, QUARANTINE_DATABASE_SUFFIX, topic_directory
from headrace.loader.commit.state import TopicState
from headrace.loader.storage.protocols import WarehouseFiles
from headrace.loader.work_unit import FileKind

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 3  # more concurrent changes within a second are not a race: some process changes the table in a loop
CURRENT_SCHEMA = "current.avsc"


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The settings from which the Hive tables of all topics are defined.

    `table_schema` returns the schema of a topic's table, with the `kafka` column; `quarantine_schema` is the same for
    all topics. `latest_view` returns a view that shows the topic's table with the fields of the newest schema version,
    None if no view is to be created. `table_comment` returns the comment of the topic's table, "" for none.
    """

    files: WarehouseFiles
    database: str
    literal_chars_max: int
    table_schema: Callable[[str, TopicState], str]
    quarantine_schema: str
    latest_view: Callable[[str, TopicState], ReplaceView | None] = lambda topic, state: None
    table_comment: Callable[[TopicState], str] = lambda state: ""


class TableOutcome(Enum):
    """What the applier did with a table: it created it, it left it to a newer commit or to the applier of partitions,
    or it is now as defined."""

    CREATED = auto()
    NEWER = auto()
    CURRENT = auto()
    DEFERRED = auto()


class SchemaApplier:
    """Creates the table of a topic, adds its new columns, and creates the quarantine table once the topic has
    quarantined messages.

    Each change is a compare-and-set on the table's revision, `<commit_number>-<run id>`, or `<commit_number>-check` if
    no commit was pending. A table that a newer commit has already changed stays as it is: the load schema only widens,
    so the newer schema also reads the older files.
    """

    name = SCHEMA
    is_advisory = False

    def __init__(self, executor: Callable[[], Executor], settings: TableSettings, head: Callable[[], int]) -> None:
        self._executor = executor
        self._settings = settings
        self._head = head
        self._databases: set[str] = set()
        self._prefetched: dict[tuple[str, str], TableState | None] = {}
        self._published: set[str] = set()

    def prepare(self, steps: Sequence[Step]) -> None:
        self._prefetched = {}
        self._published = set()
        self._prefetch_tables(steps)
        contents: dict[str, bytes] = {}
        with_commits = [step for step in steps if step.commits]
        for step in with_commits:
            contents |= schema_contents(step.topic, step.state, self._settings)
        self._settings.files.put_all(contents)
        self._published = {step.topic for step in with_commits}

    def _prefetch_tables(self, steps: Sequence[Step]) -> None:
        for database, of_kind in (
            (self._settings.database, steps),
            (
                self._settings.database + QUARANTINE_DATABASE_SUFFIX,
                [one for one in steps if one.state.quarantine.files],
            ),
        ):
            names = [step.state.table for step in of_kind]
            found = self._executor().tables_by_name(database, names) if names else {}
            self._prefetched |= {(database, name): found.get(name) for name in names}

    def apply(self, step: Step) -> None:
        revision = f"{step.state.commit_number}-{step.commits[-1].run_id if step.commits else 'check'}"
        wanted = [data_table(step.topic, step.state, self._settings, revision)]
        if step.state.quarantine.files:
            wanted.append(quarantine_table(step.topic, step.state, self._settings, revision))
        is_published = step.topic in self._published
        self._published.discard(step.topic)  # a repeated call publishes it
        if not is_published and (step.commits or not is_schema_published(step.topic, step.state, self._settings)):
            publish_schema(step.topic, step.state, self._settings)
        changes = [self._update_table(table, step) for table in wanted]
        # Without commits only the table is compared: the view depends on nothing that could have changed. But a
        # metastore that was restored from an older state has neither.
        is_due = bool(step.commits) or changes[0] is TableOutcome.CREATED
        if is_due and changes[0] is not TableOutcome.DEFERRED and TableOutcome.NEWER not in changes:
            self.update_view(step)

    def update_view(self, step: Step) -> None:
        """Creates or replaces the view that shows the topic's table, if there is to be one."""
        view = self._settings.latest_view(step.topic, step.state)
        if view is not None:
            self._update_view(view, step)

    def _update_table(self, wanted: TableState, step: Step) -> TableOutcome:
        """Creates the table, or alters it to the definition `wanted`. Leaves it unchanged if a newer commit has already
        changed it. Leaves it to the applier of partitions if a commit changed its partitioning and the metastore has no
        table with the new partition columns yet.

        Args:
            step: the topic's commits that are being applied. If the table is missing although earlier ones were
                applied, all its partitions are created again.
        """
        executor = self._executor()
        if wanted.database not in self._databases:
            executor.ensure_database(wanted.database)
            self._databases.add(wanted.database)
        for attempt in range(ATTEMPTS_MAX):
            current = self._current(executor, wanted)
            if step.state.is_repartitioned and is_to_be_replaced(current, wanted, step):
                if current is not None and is_newer(current, step.state.commit_number, self._head()):
                    return TableOutcome.NEWER
                if not step.commits:  # otherwise the applier of partitions has pending commits too
                    step.rewind("partitions")
                return TableOutcome.DEFERRED
            operations = plan_table(current, wanted)
            if current is not None and is_newer(current, step.state.commit_number, self._head()):
                return TableOutcome.NEWER
            if current is None and step.since > 0:
                # The table was dropped with its partitions, so all partitions are created again.
                step.rewind("partitions")
                if not step.commits:
                    step.warn(f"{step.topic}: its table {wanted.full_name} was missing and is created again")
            try:
                for operation in operations:
                    logger.debug("table_changed topic=%s operation=%s", step.topic, type(operation).__name__)
                    executor.execute(operation)
                break
            except StaleRevision:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
        return TableOutcome.CREATED if current is None else TableOutcome.CURRENT

    def _current(self, executor: Executor, wanted: TableState) -> TableState | None:
        """Returns the table as it is in the metastore: in the first call as it was read ahead. A change that was
        planned on an old state is refused, and then the table is read again."""
        key = (wanted.database, wanted.name)
        return self._prefetched.pop(key) if key in self._prefetched else executor.table(*key)

    def _update_view(self, view: ReplaceView, step: Step) -> None:
        """Creates or replaces the view that shows the topic's table with the fields of the newest schema version. If
        another object has its name or the statement is refused, that is only reported as a warning of `step`, because
        no row depends on the view.

        A refused view is not tried again until its definition changes, because a try takes seconds. The property
        `headrace.view_refused` of the table has its revision; `headrace hive repair` removes the property.
        """
        executor = self._executor()
        name = f"{view.database}.{view.name}"
        try:
            operations = plan_view(executor.table(view.database, view.name), view)
            table = executor.table(view.database, view.table) if operations else None
            refused = None if table is None else table.properties.get(VIEW_REFUSED)
            if table is None or refused == view_revision(view):
                return
            problem = _try_operations(executor, operations)
            if problem:
                step.warn(
                    f"topic {step.topic}: its view {name} was not created: {problem}. It is tried again when its "
                    "definition changes, or after headrace hive repair"
                )
            if problem or refused:
                _remember_refusal(executor, table, step, view_revision(view) if problem else None)
        except ForeignTable as error:
            step.warn(
                f"topic {step.topic}: its view {name} was not created, because the object of that name is not "
                f"Headrace's ({error.reason}); rename it, or set hive.latest_views = false"
            )
        except (MetastoreUnavailable, StatementRefused, StaleRevision) as error:
            step.warn(f"topic {step.topic}: its view {name} was not updated: {error}; the next load tries again")


def is_newer(current: TableState, commit_number: int, head: int) -> bool:
    """Whether a newer commit than `commit_number` has already changed the table. A number above the log's newest commit
    (`head`) belongs to a log that was lost, and is ignored.

    Args:
        current: the table as it is in the metastore.
    """
    return commit_number < commit_number_of(current.revision) <= head


def is_to_be_replaced(current: TableState | None, wanted: TableState, step: Step) -> bool:
    """Whether the applier of partitions must create a table of a repartitioned topic, because the metastore has none,
    or one with other partition columns. A new table then gets its name when it has all partitions.

    Args:
        current: the table as it is in the metastore.
    """
    if current is None:
        return step.since > 0
    return current.topic == wanted.topic and current.partition_columns != wanted.partition_columns


def _try_operations(executor: Executor, operations: Sequence[Op]) -> str:
    """Executes operations on a view. Returns the reason why one was refused, "" on success."""
    try:
        for operation in operations:
            executor.execute(operation)
    except StatementRefused as error:
        return error.reason
    return ""


def _remember_refusal(executor: Executor, table: TableState, step: Step, view: str | None) -> None:
    """Sets or removes the property `headrace.view_refused` of a topic's table.

    Args:
        table: the table as it was read before the view was tried.
        step: the topic's commits, for the new revision of the table.
        view: the revision of the refused view, None to remove the property.

    Raises:
        StaleRevision: another process has changed the table meanwhile.
    """
    revision = f"{step.state.commit_number}-{step.commits[-1].run_id if step.commits else 'check'}-view"
    properties = ((REVISION, revision), *(((VIEW_REFUSED, view),) if view else ()))
    removed = () if view else (VIEW_REFUSED,)
    executor.execute(SetProperties(table.database, table.name, table.revision, properties, removed))


def is_schema_published(topic: str, state: TopicState, settings: TableSettings) -> bool:
    """Whether the schema files of a topic's table have the right content. The applier has fsynced them when it applied
    the topic's newest commit."""
    contents = schema_contents(topic, state, settings)
    return all(_has_content(settings.files, name, content) for name, content in contents.items())


def _has_content(files: WarehouseFiles, name: str, content: bytes) -> bool:
    try:
        with files.open(name) as file:
            return file.read(len(content) + 1) == content
    except FileNotFoundError:
        return False


def publish_schema(topic: str, state: TopicState, settings: TableSettings) -> None:
    """Writes the schema of a topic's table into the directory `_schema` of its files, for Pig and for tables with
    `avro.schema.url`.

    Args:
        state: the topic's state.
        settings: returns the schema of the table for this state, and has the warehouse's files.
    """
    settings.files.put_all(schema_contents(topic, state, settings))


def schema_contents(topic: str, state: TopicState, settings: TableSettings) -> dict[str, bytes]:
    """Returns the contents of the two files with the schema of a topic's table, by name.

    Args:
        state: the topic's state.
        settings: returns the schema of the table for this state.
    """
    text = settings.table_schema(topic, state)
    directory = f"{topic_directory(state.directory, FileKind.DATA)}/{SCHEMA_DIRECTORY}"
    return dict.fromkeys((f"{directory}/{schema_file_name(text)}", f"{directory}/{CURRENT_SCHEMA}"), text.encode())


def data_table(topic: str, state: TopicState, settings: TableSettings, revision: str) -> TableState:
    comment = settings.table_comment(state)
    return desired_table(
        database=settings.database,
        name=state.table,
        location=settings.files.location(topic_directory(state.directory, FileKind.DATA)),
        topic=topic,
        subject=state.load_schema.subject,
        version=state.load_schema.version,
        schema_text=settings.table_schema(topic, state),
        revision=revision,
        partition_columns=PARTITION_COLUMNS[state.partition_by],
        properties={COMMENT: comment} if comment else {},
        literal_chars_max=settings.literal_chars_max,
    )


def quarantine_table(topic: str, state: TopicState, settings: TableSettings, revision: str) -> TableState:
    return desired_table(
        database=settings.database + QUARANTINE_DATABASE_SUFFIX,
        name=state.table,
        location=settings.files.location(topic_directory(state.directory, FileKind.QUARANTINE)),
        topic=topic,
        subject=state.load_schema.subject,
        version=state.load_schema.version,
        schema_text=settings.quarantine_schema,
        revision=revision,
        partition_columns=PARTITION_COLUMNS[state.partition_by],
        literal_chars_max=settings.literal_chars_max,
    )


def commit_number_of(revision: str | None) -> int:
    """Returns the commit that last changed a table, by the table's revision; 0 for a revision that is not ours."""
    text = (revision or "").partition("-")[0]
    return int(text) if text.isdecimal() else 0
