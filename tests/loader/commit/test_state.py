"""The state after all commits, and the rules by which a commit conflicts with it."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from headrace.loader.commit.commit import Commit, CommitKind, CommittedRange, StartOffset
from headrace.loader.commit.conflict import ConflictRule, find_conflict, topic_conflicts
from headrace.loader.commit.document import read_document, write_document
from headrace.loader.commit.json_values import canonical, from_json, to_json
from headrace.loader.commit.state import EMPTY, FileTotals, LoaderState, LoadTotals, fold
from headrace.loader.epochs import ReadEpochs
from support.loader.loader_samples import (
    clean,
    committed_file,
    committed_range,
    compact,
    load,
    load_schema,
    rewrite,
    topic_commit,
)


def state_of(*commits: Commit) -> LoaderState:
    state = EMPTY
    for commit_number, commit in enumerate(commits, start=1):
        state = fold(state, commit.with_number(commit_number))
    return state


def diverged_range(diverged_at: int, start: int, end: int, incarnation: int = 1) -> CommittedRange:
    found = committed_range(0, 15, start, end)
    return dataclasses.replace(found, diverged_at=diverged_at, incarnation=incarnation)


FIRST = load(
    "w1",
    {"orders": topic_commit(committed_range(0, None, 10, 15), files=[committed_file("3-0", 0, 10, 15)], new=True)},
)


def test_the_first_commit_of_a_topic_creates_its_state() -> None:
    known = state_of(FIRST).topics["orders"]
    assert known.table == "orders"
    assert known.topic_id == "id-1"
    assert known.load_schema == load_schema()
    assert known.partitions[0].next_offset == 15
    assert known.partitions[0].bytes_per_kilo_offset == 100_000
    assert (known.data, known.quarantine) == (FileTotals(1, 5, 1_000), FileTotals())
    assert known.commit_number == 1


def test_totals_of_loads_add_up_and_remain_after_a_rewrite_and_a_recreation() -> None:
    first = dataclasses.replace(
        topic_commit(committed_range(0, 15, 15, 20)), quarantine_codes={"framing": 2, "malformed": 1}
    )
    second = dataclasses.replace(topic_commit(committed_range(0, 20, 20, 21)), quarantine_codes={"framing": 5})
    again = topic_commit(committed_range(1, None, 0, 3), topic_id="id-2")
    commits = (load("w2", {"orders": first}), load("w3", {"orders": second}), load("w4", {"orders": again}))
    assert state_of(FIRST).topics["orders"].loads == LoadTotals(5, 500)
    totals = state_of(FIRST, *commits).topics["orders"].loads
    assert totals == LoadTotals(14, 1_400, {"framing": 7, "malformed": 1}, quarantined_since=2)
    assert from_json(to_json(totals), LoadTotals) == totals


def test_bytes_per_offset_are_smoothed_over_the_runs() -> None:
    heavy = dataclasses.replace(committed_range(0, 15, 15, 20), bytes_read=5 * 500)
    state = state_of(FIRST, load("w2", {"orders": topic_commit(heavy)}))
    assert state.topics["orders"].partitions[0].bytes_per_kilo_offset == (3 * 100_000 + 500_000) // 4


def test_a_recreated_topic_starts_again_and_keeps_table_and_files() -> None:
    again = topic_commit(committed_range(1, None, 0, 3), topic_id="id-2", files=[committed_file("0-0", 1, 0, 3)])
    known = state_of(FIRST, load("w2", {"orders": again})).topics["orders"]
    assert known.topic_id == "id-2"
    assert list(known.partitions) == [1]
    assert known.data == FileTotals(2, 8, 2_000)


def test_the_kafka_column_is_the_widest_of_all_commits() -> None:
    known = [
        state_of(FIRST, load("w2", {"orders": topic_commit(kafka_column=column)})).topics["orders"].kafka_column
        for column in ("", "none", "position", "full")
    ]
    assert known == ["position", "position", "position", "full"]


def test_foreign_ids_are_stored() -> None:
    state = state_of(FIRST, load("w2", {"orders": topic_commit(foreign_ids=frozenset({99}))}))
    assert state.topics["orders"].foreign_ids == {99}


@pytest.mark.parametrize(
    ("commit", "rule"),
    [
        (load("w2", {"orders": topic_commit(committed_range(0, 15, 15, 20))}), None),
        (load("w2", {"orders": topic_commit(committed_range(1, None, 0, 4))}), None),
        (load("w2", {"orders": topic_commit(committed_range(0, 15, 30, 40))}), None),  # data loss, declared
        (load("w2", {"orders": topic_commit(diverged_range(12, 12, 40))}), None),
        (load("w2", {"orders": topic_commit(diverged_range(12, 15, 15))}), None),
        (load("w2", {"orders": topic_commit(committed_range(0, 15, 12, 40))}), ConflictRule.LOG_DIVERGED),
        (load("w2", {"orders": topic_commit(diverged_range(12, 12, 40, 2))}), ConflictRule.LOG_DIVERGED),
        (load("w2", {"orders": topic_commit(diverged_range(12, 12, 40, 0))}), ConflictRule.LOG_DIVERGED),
        (load("w2", {"orders": topic_commit(committed_range(0, 10, 10, 20))}), ConflictRule.OFFSETS_COMMITTED),
        (load("w2", {"orders": topic_commit(committed_range(0, None, 10, 20))}), ConflictRule.OFFSETS_COMMITTED),
        (load("w2", {"orders": topic_commit(committed_range(0, 20, 20, 25))}), ConflictRule.OFFSETS_COMMITTED),
        (load("w2", {"orders": topic_commit(topic_id_before="id-0")}), ConflictRule.TOPIC_RECREATED),
        (load("w2", {"orders": topic_commit(new=True)}), ConflictRule.TOPIC_COMMITTED),
        (load("w2", {"orders": topic_commit(revision_before=2)}), ConflictRule.LOAD_SCHEMA_CHANGED),
        (load("w2", {"orders": topic_commit(topic_id="id-2")}), None),
        (
            load("w2", {"orders": topic_commit(committed_range(0, 15, 0, 5), topic_id="id-2")}),
            ConflictRule.OFFSETS_COMMITTED,
        ),
        (load("w2", {"Orders": topic_commit(new=True)}), ConflictRule.TABLE_NAME_IN_USE),
        (
            load("w2", {"a.b": topic_commit(new=True, table="a_b"), "a-b": topic_commit(new=True, table="a_b")}),
            ConflictRule.TABLE_NAME_IN_USE,
        ),
        (clean("c1", "w9"), None),
        (clean("c1", "w9", "w1"), ConflictRule.RUN_COMMITTED),
    ],
)
def test_find_conflict(commit: Commit, rule: ConflictRule | None) -> None:
    conflict = find_conflict(state_of(FIRST), commit)
    assert (conflict.rule if conflict else None) == rule


def test_a_divergence_moves_the_next_offset_back_and_increments_the_incarnation() -> None:
    first = dataclasses.replace(committed_range(0, None, 10, 15), epochs=ReadEpochs(((1, 10), (2, 13)), 15))
    again = dataclasses.replace(diverged_range(12, 12, 40), epochs=ReadEpochs(((4, 12),), 40))
    state = state_of(load("w1", {"orders": topic_commit(first, new=True)}))
    assert state.topics["orders"].partitions[0].epochs == ReadEpochs(((1, 10), (2, 13)), 15)
    state = fold(state, load("w2", {"orders": topic_commit(again)}).with_number(2))
    known = state.topics["orders"].partitions[0]
    assert (known.next_offset, known.incarnation, known.epochs) == (40, 1, ReadEpochs(((1, 10), (4, 12)), 40))
    for incarnation, rule in ((0, ConflictRule.LOG_DIVERGED), (1, None)):
        late = dataclasses.replace(committed_range(0, 40, 40, 50), incarnation=incarnation)
        conflict = find_conflict(state, load("w3", {"orders": topic_commit(late)}))
        assert (conflict.rule if conflict else None) == rule


def test_a_release_without_incarnations_refuses_a_log_with_one() -> None:
    first = load("w1", {"orders": topic_commit(committed_range(0, None, 10, 15), new=True)}).with_number(1)
    second = load("w2", {"orders": topic_commit(diverged_range(12, 12, 40))}).with_number(2)
    state = fold(fold(EMPTY, first), second)
    for value, required_fields in ((first, []), (second, ["incarnation"]), (state, ["incarnation"])):
        document = json.loads(write_document(value))
        assert document["required_fields"] == required_fields
        assert read_document(write_document(value), type(value)).value == value


def test_a_voided_run_conflicts() -> None:
    state = state_of(FIRST, clean("c1", "w2"))
    late = load("w2", {"orders": topic_commit(committed_range(0, 15, 15, 20))})
    conflict = find_conflict(state, late)
    assert conflict is not None
    assert conflict.rule is ConflictRule.RUN_VOIDED


def test_a_schema_change_increments_the_revision() -> None:
    change = load("w2", {"orders": topic_commit(schema=load_schema(2))})
    state = state_of(FIRST, change)
    assert state.topics["orders"].load_schema.revision == 2
    late = find_conflict(state, load("w3", {"orders": topic_commit(committed_range(0, 15, 15, 20))}))
    assert late is not None
    assert late.rule is ConflictRule.LOAD_SCHEMA_CHANGED


def test_state_does_not_grow_with_the_number_of_commits() -> None:
    """After a year of runs on one partition, each with one file, the state is as large as after a hundred runs."""
    state, sizes = state_of(FIRST), []
    for commit_number in range(2, 1_002):
        start = 10 + 5 * (commit_number - 1)
        one = topic_commit(
            committed_range(0, start, start, start + 5), files=[committed_file("0-0", 0, start, start + 5)]
        )
        commit = dataclasses.replace(load(f"w{commit_number}", {"orders": one}), published=state.staged_runs)
        state = fold(state, commit.with_number(commit_number))
        sizes.append(len(canonical(to_json(state))))
    assert state.topics["orders"].data == FileTotals(1_001, 5 * 1_001, 1_000 * 1_001)
    assert state.staged_runs == {"w1001"}
    assert max(sizes) - sizes[100] < 20, "only numbers grow"


def test_only_published_runs_are_dropped_from_the_state() -> None:
    state = state_of(FIRST, load("w2", {"orders": topic_commit(committed_range(0, 15, 15, 20))}))
    assert state.staged_runs == {"w1", "w2"}
    third = load("w3", {"orders": topic_commit(committed_range(0, 20, 20, 25))})
    assert fold(state, dataclasses.replace(third, published=frozenset({"w1"})).with_number(3)).staged_runs == {
        "w2",
        "w3",
    }
    assert fold(state, clean("c1", "w9").with_number(3)).staged_runs == {"w1", "w2"}, "a cleaning commit stages nothing"


def test_conflicts_are_returned_by_topic() -> None:
    late = load(
        "w2",
        {
            "orders": topic_commit(committed_range(0, 10, 10, 20)),
            "users": topic_commit(committed_range(0, None, 0, 5), new=True, table="users"),
        },
    )
    assert {topic: conflict.rule for topic, conflict in topic_conflicts(state_of(FIRST), late).items()} == {
        "orders": ConflictRule.OFFSETS_COMMITTED
    }


def test_equal_values_are_equal_bytes() -> None:
    one = canonical(to_json(load_schema()))
    other = canonical(to_json(dataclasses.replace(load_schema(), writer_ids=frozenset({7}))))
    assert one == other


MORE = load("w2", {"orders": topic_commit(committed_range(0, 15, 15, 18), files=[committed_file("0-0", 0, 15, 18)])})
MERGED_FILE = dataclasses.replace(committed_file("0-0", 0, 10, 18), records=8)
MERGED = compact(
    "20260101T050000Z-0123456789abcdef",
    {"orders": rewrite("0-1-w1-3-0", "0-2-w2-0-0", records=8, bytes=2_000, files=[MERGED_FILE])},
)


def test_a_rewrite_removes_files_and_begins_a_generation() -> None:
    state = state_of(FIRST, MORE, MERGED)
    known = state.topics["orders"]
    assert (known.data, known.generation) == (FileTotals(1, 8, 1_000), 1)
    assert known.partitions == state_of(FIRST, MORE).topics["orders"].partitions
    assert state.rewrites == {3: MERGED.committed_at_ms}
    assert "20260101T050000Z-0123456789abcdef" in state.staged_runs
    later = state_of(FIRST, MORE, MERGED, dataclasses.replace(load("w4", {}), retired=frozenset({3})))
    assert later.rewrites == {}
    assert later.topics["orders"].generation == 1


def test_file_names_contain_generation_commit_number_and_run() -> None:
    assert [file.name for file in MERGED.with_number(3).topics["orders"].files] == ["1-3-89abcdef-0-0"]
    assert [file.name for file in MORE.with_number(2).topics["orders"].files] == ["0-2-w2-0-0"]


def test_the_later_of_two_rewrites_of_a_topic_conflicts() -> None:
    again = dataclasses.replace(MERGED, run_id="w4")
    assert find_conflict(state_of(FIRST, MORE), again) is None
    conflict = find_conflict(state_of(FIRST, MORE, MERGED), again)
    assert conflict is not None
    assert re.search(r"\borders\b.*\b0\b.*\b1$", str(conflict))
    applied = compact("w4", {"orders": rewrite("1-3-89abcdef-0-0", generation_before=1)})
    assert find_conflict(state_of(FIRST, MORE, MERGED), applied) is None


def test_a_load_and_a_rewrite_do_not_conflict() -> None:
    assert find_conflict(state_of(FIRST, MERGED), MORE) is None


def test_an_expiry_has_no_staging() -> None:
    removed = rewrite("0-1-w1-3-0", records=5, bytes=1_000)
    expired = dataclasses.replace(compact("e1", {"orders": removed}), kind=CommitKind.EXPIRE)
    assert state_of(FIRST, MORE, expired).staged_runs == {"w1", "w2"}


def starting(*starts: StartOffset, run_id: str = "op") -> Commit:
    return Commit(0, CommitKind.OFFSETS, run_id, 1, "test", {}, frozenset(), reason="why", starts=starts)


def test_a_start_offset_and_a_load_conflict_in_either_order() -> None:
    chosen = starting(StartOffset("orders", 0, 5), StartOffset("clicks", 0, 5))
    assert find_conflict(EMPTY, chosen) is None
    (topic, conflict), *rest = topic_conflicts(state_of(FIRST), chosen).items()
    assert (topic, conflict.rule, rest) == ("orders", ConflictRule.START_LOADED, [])
    assert re.search(r"\borders-0\b.*\b15$", str(conflict))
    late = find_conflict(state_of(chosen), FIRST)  # it planned from where the log begins
    assert late is not None and late.rule is ConflictRule.OFFSETS_COMMITTED
    from_start_offset = load("w1", {"orders": topic_commit(committed_range(0, 5, 5, 9), new=True)})
    assert find_conflict(state_of(chosen), from_start_offset) is None
    of_other_partition = load("w1", {"orders": topic_commit(committed_range(1, None, 0, 9), new=True)})
    assert find_conflict(state_of(chosen), of_other_partition) is None
    assert find_conflict(state_of(chosen, of_other_partition), starting(StartOffset("orders", 0, 7))) is None


def test_a_start_offset_does_not_conflict_with_a_recreated_topic() -> None:
    state = state_of(FIRST, starting(StartOffset("orders", 3, 5)))
    again = load("w2", {"orders": topic_commit(committed_range(3, None, 0, 3), topic_id="id-2")})
    assert find_conflict(state, again) is None
