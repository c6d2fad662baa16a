"""`headrace hive`: the tables beside what is committed; what would be changed, and why columns look as they do."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.cli.colour import print_report_line, styled
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
from headrace.cli.loaded_state import LoadedState, loader_errors_as_command_errors, open_loaded_state
from headrace.cli.terminal import steps_shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.loader.apply.repair import Difference, Repair

    Found = dict[str, list[Difference]]
    """What was found so far, by topic; none where nothing differs."""

KEYS = ("registry.url", "loader.warehouse", "spark.master", "hive.database", "hive.metastore", "hive.executor")
FINDINGS_SHOWN_MAX = 40  # of a topic; json has them all
EXIT_CODES = """

exit codes:
  0  tables, partitions and files are as committed, or are so now
  1  something differs, and is named; or of some topics it cannot be told, and they are named
  2  could not tell: the metastore, the commits or the warehouse cannot be read
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares Hive tables with what has been loaded: in the metastore of the settings, or in any other that "
        "--metastore or --hive-executor names, where `apply` makes the same tables over the same files. Loads keep "
        "their tables right by themselves; this is for what others did to them."
    )
    parser.epilog = (
        examples(
            "hive plan",
            "hive apply orders --hive-executor hive://hive.example.org:10000",
            "hive repair --dry-run",
            "hive drop orders",
            "hive explain orders",
            "hive history orders",
            "hive latest orders",
        )
        + EXIT_CODES
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        _configure_verb(verbs.add_parser(verb.name, help=verb.help), verb)


def _configure_verb(parser: argparse.ArgumentParser, verb: Verb) -> None:
    parser.description = verb.description
    parser.epilog = examples(*verb.examples)
    if verb.of_one_topic:
        parser.add_argument("topics", nargs=1, metavar="TOPIC", help="the topic")
    else:
        parser.add_argument("topics", nargs="*", metavar="TOPIC", help="only these topics (default: all)")
    if verb.changes:
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")
    add_settings_flags(parser, KEYS)
    add_format_flag(parser)
    parser.set_defaults(run_verb=verb.run, **({} if verb.changes else {"dry_run": True}))


def run(args: argparse.Namespace) -> int:
    return int(args.run_verb(args))


def show_plan(args: argparse.Namespace) -> int:
    """The statements, with what is the matter as comments."""
    found: Found = {}
    with _printing(_print_plan, args, found), _repairing(args, deep=False) as (repair, topics):
        for topic in topics:
            found[topic] = list(repair.compare(topic))
    return _exit_code(found, is_dry=True)


def mend(args: argparse.Namespace, *, deep: bool) -> int:
    found: Found = {}
    with _printing(_print_mended, args, found), _repairing(args, deep=deep) as (repair, topics):
        for topic in topics:
            told = found.setdefault(topic, [])
            if args.dry_run:
                told += repair.compare(topic)
            else:
                repair.mend(topic, told.append)
    return _exit_code(found, is_dry=args.dry_run)


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
            print(f"dropped {op.database}.{op.name}; its files are where they were")
    if not ops and args.format != "json":
        print("there is no such table")
    return EXIT_OK


def explain(args: argparse.Namespace) -> int:
    from headrace.loader.load_schema import LoadState
    from headrace.loader.load_schema import explain as rules_of

    with open_loaded_state(args) as known:
        (topic,) = args.topics
        loaded = known.topic(topic).load_schema
    fold = LoadState.from_json(json.loads(loaded.fold))
    rules = rules_of(fold)
    if args.format == "json":
        rows = [
            {"version": one.version, "column": one.column, "rule": one.rule, "detail": one.detail, "reason": one.reason}
            for one in rules
        ]
        print_json({"topic": topic, "subject": loaded.subject, "versions": list(fold.versions), "rules": rows})
        return EXIT_OK
    if rules:
        print_table(
            ("version", "column", "rule", "detail", "because"),
            [(str(one.version), one.column, one.rule, one.detail, one.reason) for one in rules],
            right=(0,),
        )
    versions = ", ".join(map(str, fold.versions))
    count = f"{len(rules):,} rule{'' if len(rules) == 1 else 's'}"
    name = styled(topic, "head")
    print(f"{name}: subject {loaded.subject}, versions {versions}; {count} beyond taking fields as they are")
    return EXIT_OK


def _topic_of(known: LoadedState, name: str) -> str:
    """The topic of this name, or whose table has it."""
    topics = known.log.state.topics
    return name if name in topics else next((one for one, state in topics.items() if state.table == name), name)


def latest(args: argparse.Namespace) -> int:
    from headrace.hive_ddl.render import statements
    from headrace.loader.inspect.latest_view import latest_view, newest_id
    from headrace.loader.plan.kept_schemas import KeptSchemas
    from headrace.registry.client.of_settings import registry_client

    with open_loaded_state(args) as known, loader_errors_as_command_errors():
        (name,) = args.topics
        topic = _topic_of(known, name)
        state = known.topic(topic)
        loaded, settings = state.load_schema, known.settings
        schema_id = newest_id(state)
        if schema_id is None:
            registry = registry_client(settings)
            try:
                schema_id = registry.version(loaded.subject, loaded.version).schema_id
            finally:
                registry.close()
        text = KeptSchemas(known.log.storage, keeps=False).text(schema_id)
    view = text and latest_view(topic, state, settings.loader.kafka_column, settings.hive.database, schema_id, text)
    if not view:
        raise CommandError(
            f"version {loaded.version} of {loaded.subject} is another one than was loaded: headrace load"
        )
    print(*statements(view), sep="\n")
    return EXIT_OK


def history(args: argparse.Namespace) -> int:
    from headrace.loader.inspect.history import table_history

    with open_loaded_state(args) as known:
        (name,) = args.topics
        topic = _topic_of(known, name)
        table = known.topic(topic).table
        changes = table_history(known.log, topic)
    if args.format == "json":
        print_json({"topic": topic, "table": table, "changes": [dataclasses.asdict(one) for one in changes]})
        return EXIT_OK
    for one in changes:
        when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(one.committed_at_ms / 1000))
        print(styled(f"{when}  commit {one.commit_number}  {one.subject} version {one.version}", "head"))
        for change in one.changes or ("no column is another",):
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
    of_one_topic: bool = False


VERBS = (
    Verb(
        "plan",
        "print the statements that would bring tables to what is committed",
        "Prints, as HiveQL, what apply would do to tables and partitions, and changes nothing. With --hive-executor "
        "print no metastore is asked, and everything is printed.",
        ("hive plan", "hive plan orders --hive-executor print"),
        show_plan,
        changes=False,
    ),
    Verb(
        "apply",
        "make and alter tables, and add and move partitions, as committed",
        "Makes and alters tables, and adds and moves partitions, as committed. Properties of others are kept.",
        ("hive apply", "hive apply orders --hive-executor hive://hive.example.org:10000"),
        lambda args: mend(args, deep=False),
    ),
    Verb(
        "repair",
        "as apply, and take out what nothing committed",
        "Does what apply does, and looks into every directory: partitions that nothing committed leave the table, "
        "foreign "
        "files and directories go to the directory _foreign of the topic, and committed files that are gone are named. "
        "Nothing "
        "is deleted.",
        ("hive repair --dry-run", "hive repair orders"),
        lambda args: mend(args, deep=True),
    ),
    Verb(
        "drop",
        "take the tables of a topic out of the metastore",
        "Takes the table of a topic, and of its quarantine, out of the metastore. Files stay where they are; apply, or "
        "the next load of the topic, makes the tables again.",
        ("hive drop orders --dry-run", "hive drop orders"),
        drop,
        of_one_topic=True,
    ),
    Verb(
        "explain",
        "say by which rules the columns of a topic came to be",
        "Says by which rules the columns of a topic came to be, version by version. Needs no metastore.",
        ("hive explain orders", "hive explain orders --format json"),
        explain,
        changes=False,
        of_one_topic=True,
    ),
    Verb(
        "history",
        "say when the columns of a table changed, and how",
        "Says when the columns of a table changed, how, and with which version of the schema: from all commits on "
        "it. Takes the name of the topic or of the table, and needs no metastore.",
        ("hive history orders", "hive history orders --format json"),
        history,
        changes=False,
        of_one_topic=True,
    ),
    Verb(
        "latest",
        "print the statement of a view with the newest schema's columns",
        "Prints the statement, in Spark's SQL, of the view <table>_latest: the newest schema's fields under their own "
        "names and with their docs as comments, over the columns that earlier versions left. Run it where you query.",
        ("hive latest orders",),
        latest,
        changes=False,
        of_one_topic=True,
    ),
)


@contextlib.contextmanager
def _repairing(args: argparse.Namespace, *, deep: bool) -> Iterator[tuple[Repair, Sequence[str]]]:
    """While open, what keeps the command from running becomes its one line."""
    from headrace.pipeline.load import commit_log, open_repair

    settings = settings_from(args)
    output = sys.stderr if args.format == "json" else sys.stdout
    with loader_errors_as_command_errors():
        log = commit_log(settings)
        log.check_format(writing=not args.dry_run)
        known = log.read_state().topics
        for topic in args.topics:
            if topic not in known:
                loaded = ", ".join(sorted(known)) or "none yet"
                raise CommandError(f"nothing of topic {topic} has been loaded; loaded topics: {loaded}")
        shown = contextlib.nullcontext() if settings.hive.executor == "print" else steps_shown()
        with shown, open_repair(settings, log, output, deep=deep) as repair:
            yield repair, args.topics or sorted(known)


@contextlib.contextmanager
def _printing(
    show: Callable[[argparse.Namespace, Found], None], args: argparse.Namespace, found: Found
) -> Iterator[None]:
    """Shows what was found at the end; where the command ends before it has looked at all topics, what differs."""
    try:
        yield
    except (CommandError, KeyboardInterrupt):
        differing = {topic: differences for topic, differences in found.items() if differences}
        if differing:
            show(args, differing)
        raise
    show(args, found)


def _exit_code(found: Found, *, is_dry: bool) -> int:
    from headrace.loader.apply.repair import Trouble

    every = [one for differences in found.values() for one in differences]
    if every and all(one.trouble is Trouble.UNTOLD for one in every) and all(found.values()):
        return EXIT_FAILED
    return EXIT_FINDINGS if any(is_dry or not one.is_mendable for one in every) else EXIT_OK


def _print_plan(args: argparse.Namespace, found: Found) -> None:
    from headrace.hive_ddl.render import render_script

    if args.format == "json":
        print_json({"topics": _found_json(found)})
        return
    for topic, differences in found.items():
        for one in differences:
            print(f"-- {topic}: {one.where}: {one.message}")
            sys.stdout.write(render_script(one.ops))


def _print_mended(args: argparse.Namespace, found: Found) -> None:
    if args.format == "json":
        print_json({"topics": _found_json(found), "dry_run": args.dry_run})
        return
    mended = left = 0
    for differences in found.values():
        for number, one in enumerate(differences):
            word = "NOT MENDED" if not one.is_mendable else "would be mended" if args.dry_run else "mended"
            if number < FINDINGS_SHOWN_MAX:
                print_report_line(f"{word}: {one.topic}: {one.where}: {one.message}")
        if len(differences) > FINDINGS_SHOWN_MAX:
            print(f"… and {len(differences) - FINDINGS_SHOWN_MAX:,} more; --format json has them all")
        mended += sum(one.is_mendable for one in differences)
        left += sum(not one.is_mendable for one in differences)
    print(f"{mended:,} {'would be ' if args.dry_run else ''}mended, {left:,} left to people")


def _found_json(found: Found) -> dict[str, list[dict[str, Any]]]:
    return {topic: [_json(one) for one in differences] for topic, differences in found.items()}


def _json(one: Difference) -> dict[str, Any]:
    from headrace.hive_ddl.render import render

    return {
        "trouble": one.trouble.value,
        "where": one.where,
        "message": one.message,
        "mendable": one.is_mendable,
        "statements": [render(op) for op in one.ops],
        "moves": [list(move) for move in one.moves],
    }
