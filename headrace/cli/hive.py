"""`headrace hive`: compares Hive tables with the committed data, repairs them, and explains their columns."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli import repartition
from headrace.cli.colour import styled
from headrace.cli.command import (
    EXIT_FAILED,
    EXIT_FINDINGS,
    EXIT_OK,
    CommandError,
    add_format_flag,
    add_settings_flags,
    examples,
    print_json,
    print_table,
    settings_from,
)
from headrace.cli.loaded_state import loader_errors_as_command_errors, open_loaded_state
from headrace.cli.report import ROWS_SHOWN_MAX, add_all_flag, add_topic_patterns, count_text, print_lines, select_topics
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.loader.apply.repair import Difference, Repair

    DifferencesByTopic = dict[str, list[Difference]]
    """The differences found so far, by topic. A topic without differences has an empty list."""

PLANNED_PARTITIONS_TOPICS_MAX = 200
"""Most topics for which `hive plan` compares partitions. A metastore has no request for the partitions of several
tables, and the bundled one needs some 20 ms for each table. Loads compare all partitions in turn."""

KEYS = ("registry.url", "loader.warehouse", "spark.master", "hive.database", "hive.metastore", "hive.executor")
EXIT_CODES = """

exit codes:
  0  tables, partitions and files match the commits, or do so after the repair
  1  differences, or topics that could not be compared; the output names them
  2  failure: the metastore, the commit log or the warehouse cannot be read
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares Hive tables with the loaded data, and repairs them. Loads keep tables up to date, so these commands "
        "are needed only after other programs changed tables. With --metastore or --hive-executor they use another "
        "metastore, in which `apply` creates the same tables over the same files."
    )
    parser.epilog = (
        examples(
            "hive plan",
            "hive apply orders --hive-executor hive://hive.example.org:10000",
            "hive repair --dry-run",
            "hive drop orders",
            "hive repartition orders --by day",
            "hive explain orders",
            "hive history orders",
            "hive latest orders",
        )
        + EXIT_CODES
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        _configure_verb(verbs.add_parser(verb.name, help=verb.help), verb)
    repartition.configure(verbs.add_parser("repartition", help="change the partitioning of a topic's tables"))


def _configure_verb(parser: argparse.ArgumentParser, verb: Verb) -> None:
    parser.description = verb.description
    parser.epilog = examples(*verb.examples)
    if verb.is_single_topic:
        parser.add_argument("topics", nargs=1, metavar="TOPIC", help="the topic")
    else:
        add_topic_patterns(parser, positional=True)
    if verb.changes:
        parser.add_argument("--dry-run", action="store_true", help="show the changes without making them")
    if verb.changes and not verb.is_single_topic:
        add_all_flag(parser, pages=False)  # an executor that prints shows each statement at once
    add_settings_flags(parser, KEYS)
    add_format_flag(parser)
    parser.set_defaults(run_verb=verb.run, **({} if verb.changes else {"dry_run": True, "pages": True}))


def run(args: argparse.Namespace) -> int:
    return int(args.run_verb(args))


def show_plan(args: argparse.Namespace) -> int:
    """Runs the verb `plan`: prints the statements that would update the tables. An SQL comment above them describes
    each difference that the statements remove. Returns the exit code."""
    differences_found: DifferencesByTopic = {}
    with (
        _printing(_print_plan, args, differences_found),
        _repairing(args, deep=False, partitions_topics_max=PLANNED_PARTITIONS_TOPICS_MAX) as (repair, topics),
    ):
        for topic in repair.prefetched(topics):
            differences_found[topic] = list(repair.compare(topic))
    return _exit_code(differences_found, is_dry=True)


def apply_changes(args: argparse.Namespace, *, deep: bool) -> int:
    differences_found: DifferencesByTopic = {}
    with _printing(_print_repairs, args, differences_found), _repairing(args, deep=deep) as (repair, topics):
        for topic in repair.prefetched(topics):
            topic_differences = differences_found.setdefault(topic, [])
            if args.dry_run:
                topic_differences += repair.compare(topic)
            else:
                repair.repair_topic(topic, topic_differences.append)
    return _exit_code(differences_found, is_dry=args.dry_run)


def drop(args: argparse.Namespace) -> int:
    from headrace.hive_ddl.render import render_script

    with _repairing(args, deep=False) as (repair, topics):
        ops = [op for topic in topics for op in repair.drop(topic)]
        for op in ops if not args.dry_run else ():
            repair.executor().execute(op)
    if args.format == "json":
        print_json({"dropped": [f"{op.database}.{op.name}" for op in ops], "dry_run": args.dry_run})
    elif args.dry_run:
        sys.stdout.write(render_script(ops))
    else:
        for op in ops:
            print(f"dropped {op.database}.{op.name}; its files remain")
    if not ops and args.format != "json":
        print("the topic has no table in this metastore")
    return EXIT_OK


def explain(args: argparse.Namespace) -> int:
    from headrace.loader.inspect.topic_tables import table_rules, topic_named

    with open_loaded_state(args) as known:
        topic = topic_named(known.log.state, args.topics[0])
        loaded = known.topic(topic).load_schema
        versions, rules = table_rules(known.topic(topic))
    if args.format == "json":
        rows = [
            {
                "version": item.version,
                "column": item.column,
                "rule": item.rule,
                "detail": item.detail,
                "reason": item.reason,
            }
            for item in rules
        ]
        print_json({"topic": topic, "subject": loaded.subject, "versions": list(versions), "rules": rows})
        return EXIT_OK
    if rules:
        print_table(
            ("version", "column", "rule", "detail", "because"),
            [(str(item.version), item.column, item.rule, item.detail, item.reason) for item in rules],
            right=(0,),
        )
    version_texts = ", ".join(map(str, versions))
    count = f"{len(rules):,} rule{'' if len(rules) == 1 else 's'}"
    name = styled(topic, "head")
    print(f"{name}: subject {loaded.subject}, versions {version_texts}; {count}, not counting unchanged fields")
    return EXIT_OK


def latest(args: argparse.Namespace) -> int:
    from headrace.hive_ddl.render import render_statements
    from headrace.loader.inspect.latest_view import latest_view, newest_id
    from headrace.loader.inspect.topic_tables import topic_named
    from headrace.loader.plan.schema_cache import SchemaCache
    from headrace.registry.client.of_settings import registry_client

    with open_loaded_state(args) as known, loader_errors_as_command_errors():
        topic = topic_named(known.log.state, args.topics[0])
        state = known.topic(topic)
        loaded, settings = state.load_schema, known.settings
        schema_id = newest_id(state)
        if schema_id is None:
            registry = registry_client(settings)
            try:
                schema_id = registry.version(loaded.subject, loaded.version).schema_id
            finally:
                registry.close()
        text = SchemaCache(known.log.storage, writable=False).text(schema_id)
    view = text and latest_view(topic, state, settings.loader.kafka_column, settings.hive.database, schema_id, text)
    if not view:
        raise CommandError(
            f"topic {topic}: schema id {schema_id} of subject {loaded.subject} is not loaded yet; run `headrace load`"
        )
    print(*render_statements(view), sep="\n")
    return EXIT_OK


def history(args: argparse.Namespace) -> int:
    from headrace.loader.inspect.history import table_history
    from headrace.loader.inspect.topic_tables import topic_named

    with open_loaded_state(args) as known:
        topic = topic_named(known.log.state, args.topics[0])
        table = known.topic(topic).table
        changes = table_history(known.log, topic)
    if args.format == "json":
        print_json({"topic": topic, "table": table, "changes": [dataclasses.asdict(item) for item in changes]})
        return EXIT_OK
    for item in changes:
        committed_at = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(item.committed_at_ms / 1000))
        print(styled(f"{committed_at}  commit {item.commit_number}  {item.subject} version {item.version}", "head"))
        for change in item.changes or ("no column changed",):
            print(f"  {change}")
    print(f"{table}: {len(changes):,} change{'' if len(changes) == 1 else 's'} of topic {topic}")
    return EXIT_OK


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    help: str
    description: str
    examples: tuple[str, ...]
    run: Callable[[argparse.Namespace], int]
    changes: bool = True
    is_single_topic: bool = False


VERBS = (
    Verb(
        "plan",
        "print the statements that would update the tables",
        "Prints, as HiveQL, the changes of `apply` to tables and partitions. Changes nothing. Of more than "
        f"{PLANNED_PARTITIONS_TOPICS_MAX} topics it compares the tables without their partitions. With "
        "--hive-executor print it does not read the metastore, and prints all statements.",
        ("hive plan", "hive plan orders --hive-executor print"),
        show_plan,
        changes=False,
    ),
    Verb(
        "apply",
        "create and alter tables, and add and move partitions, to match the commits",
        "Creates and alters tables, and adds and moves partitions, to match the commits. Keeps table properties "
        "that other programs set.",
        ("hive apply", "hive apply orders --hive-executor hive://hive.example.org:10000"),
        lambda args: apply_changes(args, deep=False),
    ),
    Verb(
        "repair",
        "like apply, and remove everything that no commit added",
        "Does the work of apply and also lists every directory: removes partitions that no commit added from the "
        "table, moves foreign files and directories to the directory _foreign of the topic, and reports committed "
        "files that are missing. Deletes nothing.",
        ("hive repair --dry-run", "hive repair orders"),
        lambda args: apply_changes(args, deep=True),
    ),
    Verb(
        "drop",
        "drop the tables of a topic from the metastore",
        "Drops the table of a topic, and its quarantine table, from the metastore. The files remain; apply, or "
        "the next load of the topic, creates the tables again.",
        ("hive drop orders --dry-run", "hive drop orders"),
        drop,
        is_single_topic=True,
    ),
    Verb(
        "explain",
        "show the rules that produced the columns of a topic",
        "Shows the rules that produced the columns of a topic, version by version. Needs no metastore.",
        ("hive explain orders", "hive explain orders --format json"),
        explain,
        changes=False,
        is_single_topic=True,
    ),
    Verb(
        "history",
        "show when the columns of a table changed, and how",
        "Shows when the columns of a table changed, how, and with which version of the schema, from the commits "
        "of the topic. Takes the name of the topic or of the table. Needs no metastore.",
        ("hive history orders", "hive history orders --format json"),
        history,
        changes=False,
        is_single_topic=True,
    ),
    Verb(
        "latest",
        "print the statement of a view with the newest schema's columns",
        "Prints the Spark SQL statement of the view <table>_latest: the newest schema's fields, with their names "
        "and with their docs as comments, over the columns of earlier versions. Run the statement in your query "
        "engine.",
        ("hive latest orders",),
        latest,
        changes=False,
        is_single_topic=True,
    ),
)


@contextlib.contextmanager
def _repairing(
    args: argparse.Namespace, *, deep: bool, partitions_topics_max: int = sys.maxsize
) -> Iterator[tuple[Repair, Sequence[str]]]:
    """Opens the tables for comparison or repair. In the context, expected errors end the command with one line.

    Args:
        deep: whether to list the directories too, in search of files and partitions that no commit added.
        partitions_topics_max: most topics for which the partitions of existing tables are compared.

    Yields:
        The repair, and the topics of the command line (all loaded topics if it names none).
    """
    from headrace.pipeline.load import commit_log, open_repair

    settings = settings_from(args)
    output = sys.stderr if args.format == "json" else sys.stdout
    with loader_errors_as_command_errors():
        log = commit_log(settings)
        log.check_format(writing=not args.dry_run)
        topics = select_topics(args.topics, log.read_state().topics)
        steps = contextlib.nullcontext() if settings.hive.executor == "print" else steps_shown()
        has_partitions = len(topics) <= partitions_topics_max or settings.hive.executor == "print"
        with steps, open_repair(settings, log, output, deep=deep, compares_partitions=has_partitions) as repair:
            yield repair, topics
        if not has_partitions:
            print(
                f"headrace: the partitions were not compared, because there are {len(topics):,} topics; "
                f"name at most {partitions_topics_max} topics, or run headrace hive apply --dry-run",
                file=sys.stderr,
            )


@contextlib.contextmanager
def _printing(
    show: Callable[[argparse.Namespace, DifferencesByTopic], None],
    args: argparse.Namespace,
    differences_found: DifferencesByTopic,
) -> Iterator[None]:
    """Prints how Hive tables differ from the commit log, when the context ends. After an error or Ctrl-C in the
    context, prints the differences found before it.

    Args:
        show: prints the differences that it receives.
        differences_found: filled by the body of the context.
    """
    try:
        yield
    except (CommandError, KeyboardInterrupt):
        differing = {topic: differences for topic, differences in differences_found.items() if differences}
        if differing:
            show(args, differing)
        raise
    show(args, differences_found)


def _exit_code(differences_found: DifferencesByTopic, *, is_dry: bool) -> int:
    from headrace.loader.apply.repair import DifferenceKind

    all_differences = [item for differences in differences_found.values() for item in differences]
    if (
        all_differences
        and all(item.kind is DifferenceKind.UNKNOWN for item in all_differences)
        and all(differences_found.values())
    ):
        return EXIT_FAILED
    return EXIT_FINDINGS if any(is_dry or not item.is_repairable for item in all_differences) else EXIT_OK


def _print_plan(args: argparse.Namespace, differences_found: DifferencesByTopic) -> None:
    from headrace.hive_ddl.render import render_script

    if args.format == "json":
        print_json({"topics": _differences_json(differences_found)})
        return
    differing = [differences for differences in differences_found.values() if differences]
    if differing:
        print(f"-- {count_text(sum(map(len, differing)), 'difference')} of {count_text(len(differing), 'topic')}")
    for topic, differences in differences_found.items():
        for item in differences:
            print(f"-- {topic}: {item.where}: {item.message}")
            sys.stdout.write(render_script(item.ops))


def _print_repairs(args: argparse.Namespace, differences_found: DifferencesByTopic) -> None:
    if args.format == "json":
        print_json({"topics": _differences_json(differences_found), "dry_run": args.dry_run})
        return
    found = [item for differences in differences_found.values() for item in differences]
    repaired, left = [item for item in found if item.is_repairable], [item for item in found if not item.is_repairable]
    word = "would be repaired" if args.dry_run else "repaired"
    topics = count_text(sum(map(bool, differences_found.values())), "topic")
    print(f"{len(repaired):,} {word}, {len(left):,} need manual action, of {topics}")
    for kind, items in (("NOT REPAIRED", left), (word, repaired)):
        print_lines(
            [f"{kind}: {item.topic}: {item.where}: {item.message}" for item in items],
            shows_all=args.all,
            lines_max=ROWS_SHOWN_MAX,
        )


def _differences_json(differences_found: DifferencesByTopic) -> dict[str, list[dict[str, Any]]]:
    return {topic: [_json(item) for item in differences] for topic, differences in differences_found.items()}


def _json(item: Difference) -> dict[str, Any]:
    from headrace.hive_ddl.render import render

    return {
        "kind": item.kind.value,
        "where": item.where,
        "message": item.message,
        "repairable": item.is_repairable,
        "statements": [render(op) for op in item.ops],
        "moves": [list(move) for move in item.moves],
    }
