"""Export and import of a registry: content of exports, plans of imports, and imports interrupted at any point."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.registry import errors
from headrace.registry.domain import SubjectVersion
from headrace.registry.errors import ExportFileInvalid, ImportStopped, RegistryChanged
from headrace.registry.transfer.execution import execute_actions, find_missing_versions, plan_importable, read_target
from headrace.registry.transfer.export import read_registry
from headrace.registry.transfer.export_file import read_snapshot, write_snapshot
from headrace.registry.transfer.parallel import run_parallel
from headrace.registry.transfer.plan import ImportPlan, SetMode, TargetContent, plan_import
from headrace.registry.transfer.remote import RemoteRegistry
from headrace.registry.transfer.snapshot import ExportedVersion, Selection, Snapshot, json_text
from support.examples import examples
from support.golden import case_lines, golden
from support.pages import page
from support.registry.reference_registry import ReferenceRegistry


def ignore_progress(step: str, done: int, total: int) -> None:
    pass


def exported(registry: ReferenceRegistry, **selection: tuple[str, ...]) -> bytes:
    out = io.BytesIO()
    write_snapshot(read_registry(RemoteRegistry(registry), Selection(**selection), ignore_progress), out)
    return out.getvalue()


def snapshot_of(content: bytes) -> Snapshot:
    return read_snapshot(io.BytesIO(content), "e.jsonl")


def planned(content: bytes, registry: ReferenceRegistry) -> ImportPlan:
    snapshot = snapshot_of(content)
    return plan_import(snapshot, read_target(RemoteRegistry(registry), snapshot, ignore_progress))


def imported(content: bytes, registry: ReferenceRegistry, *, actions_max: int | None = None) -> int:
    """Plans an import and runs its first actions; returns the number of planned actions."""
    plan = planned(content, registry)
    assert not plan.problems
    result = execute_actions(RemoteRegistry(registry), plan.actions[:actions_max], ignore_progress, skip_rejected=False)
    assert not result.rejected
    return len(plan.actions)


def lines(content: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in content.splitlines()]


def check_lines(name: str, found: Iterable[object]) -> None:
    """Compares actions or problems, one per line, with the golden file."""
    text = "".join(f"{each}\n" for each in found)
    assert text == golden(f"registry_transfer/{name}.txt", text)


def fixed(number: int) -> str:
    return f'{{"type":"fixed","name":"F{number}","size":{number}}}'


@pytest.fixture
def shop() -> ReferenceRegistry:
    """Two contexts, references against the order of names, all kinds of deletions, configurations and modes."""
    registry = ReferenceRegistry()
    registry.register("z-money", fixed(1))
    registry.register("orders", '"F1"', references=[{"name": "F1", "subject": "z-money", "version": 1}])
    registry.register("orders", fixed(2), metadata={"properties": {"owner": "me"}, "tags": {"F2": ["b", "a"]}})
    registry.register(
        "orders", fixed(3), ruleSet={"domainRules": [{"name": "r", "kind": "CONDITION", "mode": "WRITE"}]}
    )
    registry.register(":.eu:orders", fixed(4))
    registry.delete("orders", 2)
    registry.call("PUT", "/config", body={"compatibility": "FULL", "normalize": True})
    registry.call("PUT", "/config/orders", body={"compatibility": "NONE", "alias": "z-money"})
    registry.call("PUT", "/config/:.eu:", body={"compatibility": "FORWARD"})
    registry.call("PUT", "/mode/z-money", body={"mode": "READONLY"})
    registry.call("PUT", "/mode/:.__GLOBAL:", body={"mode": "READWRITE"})
    return registry


def test_export_has_all_content_with_referenced_versions_first(shop: ReferenceRegistry) -> None:
    found = lines(exported(shop))
    assert found[0] == {"kind": "header", "fileType": "schema registry export", "format": 1}
    assert [line["context"] for line in found if line["kind"] == "context"] == [".", ".__GLOBAL", ".eu"]
    versions = [line for line in found if line["kind"] == "version"]
    assert [(line["subject"], line["version"], line["id"]) for line in versions] == [
        ("z-money", 1, 1),
        ("orders", 1, 2),
        ("orders", 2, 3),
        ("orders", 3, 4),
        (":.eu:orders", 1, 1),
    ]
    assert versions[1]["references"] == [{"name": "F1", "subject": "z-money", "version": 1}]
    assert versions[2] == {
        "kind": "version",
        "subject": "orders",
        "version": 2,
        "id": 3,
        "schemaType": "AVRO",
        "metadata": {"properties": {"owner": "me"}, "tags": {"F2": ["a", "b"]}},
        "deleted": True,
        "schema": fixed(2),
    }
    assert [line for line in found if line["kind"] in ("config", "mode")] == [
        {"kind": "config", "scope": ":.:", "config": {"compatibilityLevel": "FULL", "normalize": True}},
        {"kind": "config", "scope": "orders", "config": {"alias": "z-money", "compatibilityLevel": "NONE"}},
        {"kind": "config", "scope": ":.eu:", "config": {"compatibilityLevel": "FORWARD"}},
        {"kind": "mode", "scope": ":.:", "mode": "READWRITE"},
        {"kind": "mode", "scope": "z-money", "mode": "READONLY"},
        {"kind": "mode", "scope": ":.__GLOBAL:", "mode": "READWRITE"},
    ]
    assert found[-1]["lines"] == len(found) - 1


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"release": 7},
        {"page_max": 2},
        {"pages": False},
        {"lists_contexts": False},
        {"lists_contexts": False, "page_max": 1},
    ],
    ids=str,
)
def test_copy_exports_the_same_bytes(shop: ReferenceRegistry, options: dict[str, Any]) -> None:
    content = exported(shop)
    target = ReferenceRegistry(**options)
    imported(content, target)
    assert exported(target) == content
    assert imported(content, target) == 0
    assert find_missing_versions(RemoteRegistry(target), snapshot_of(content), ignore_progress, ()) == []


def test_interrupted_import_is_finished_by_another(shop: ReferenceRegistry) -> None:
    content = exported(shop)
    count = len(planned(content, ReferenceRegistry()).actions)
    for done in range(count):
        target = ReferenceRegistry()
        imported(content, target, actions_max=done)
        imported(content, target)
        assert exported(target) == content, done


@settings(max_examples=examples(0.4))
@given(st.data())
def test_random_registry_is_copied_in_two_attempts(data: st.DataObject) -> None:
    source = ReferenceRegistry()
    subjects = st.sampled_from(["a", "b", "c/d", ":.x:a", ":.x:b"])
    for _ in range(data.draw(st.integers(1, 14))):
        subject = data.draw(subjects)
        present = [key for key in source.stored if (key[0].startswith(":.x:") == subject.startswith(":.x:"))]
        if present and data.draw(st.integers(0, 2)) == 0:
            name, version = data.draw(st.sampled_from(present))
            try:
                source.delete(name.replace("/", "%2F"), version)
            except errors.RegistryError:
                continue
        else:
            picked = data.draw(st.lists(st.sampled_from(present), max_size=2, unique=True)) if present else []
            references = [{"name": f"R{n}", "subject": name, "version": v} for n, (name, v) in enumerate(picked)]
            source.register(subject.replace("/", "%2F"), fixed(data.draw(st.integers(1, 4))), references=references)
    if data.draw(st.booleans()):
        source.call("PUT", "/config/a", body={"compatibility": "NONE"})
        source.call("PUT", "/mode/a", body={"mode": "READONLY"})
    content = exported(source)
    target = ReferenceRegistry()
    imported(content, target, actions_max=data.draw(st.integers(0, 40)))
    imported(content, target)
    assert exported(target) == content


def test_empty_context_is_not_exported() -> None:
    class Emptied(ReferenceRegistry):
        def _get_contexts(self, rest: list[str], query: dict[str, Any], body: dict[str, Any]) -> list[str]:
            return [".", ".empty", ".kept"]

    registry = Emptied()
    registry.call("PUT", "/config/:.kept:", body={"compatibility": "NONE"})
    assert [line["context"] for line in lines(exported(registry)) if line["kind"] == "context"] == [
        ".",
        ".__GLOBAL",
        ".kept",
    ]


def test_aliases_of_a_registry_without_a_list_of_scopes_are_copied() -> None:
    """The reference implementation lists aliases only with the schemas of the subject that they stand for."""
    source, target = ReferenceRegistry(page_max=1), ReferenceRegistry()
    for subject in ("a", "b", "orders", ":.eu:orders"):
        source.register(subject, fixed(1))
    aliases = {"bestellungen": "orders", "old": ":.eu:orders", ":.eu:alt": "orders"}
    for alias, subject in aliases.items():
        source.call("PUT", f"/config/{alias}", body={"alias": subject, "compatibility": "NONE"})
    imported(exported(source), target)
    assert {scope: config["alias"] for scope, config in target.configs.items() if "alias" in config} == aliases
    selected = lines(exported(source, subjects=("b*",)))
    assert [line.get("scope") for line in selected if line["kind"] == "config"] == ["bestellungen"]
    assert Selection((), ("b*",)).select_from(snapshot_of(exported(source))).scopes == ["b", "bestellungen"]


def test_source_without_contexts_and_modes_is_exported() -> None:
    class OldRegistry(ReferenceRegistry):
        def call(self, method: str, path: str, **more: Any) -> Any:
            if path.startswith(("/contexts", "/mode")):
                raise errors.ServiceError("HTTP 404 Not Found", status=404, error_code=404)
            if "GLOBAL" in path:
                raise errors.InvalidSubject(subject=":.__GLOBAL:")
            return super().call(method, path, **more)

    source, target = OldRegistry(), ReferenceRegistry()
    source.register("a", fixed(1))
    assert [line["kind"] for line in lines(exported(source))] == [
        *("header", "context", "context", "version", "config", "end")
    ]
    imported(exported(source), target)
    assert (target.call("GET", "/mode"), target.stored["a", 1]["id"]) == ({"mode": "READWRITE"}, 1)


def test_versions_of_a_subject_stay_in_order_if_references_allow() -> None:
    registry = ReferenceRegistry()
    registry.register("b", fixed(1))
    registry.register("a", '"F1"', references=[{"name": "F1", "subject": "b", "version": 1}])
    registry.register("a", fixed(2))
    registry.register("b", fixed(3))
    found = [(line["subject"], line["version"]) for line in lines(exported(registry)) if line["kind"] == "version"]
    assert found == [("b", 1), ("a", 1), ("a", 2), ("b", 2)]


def test_selection_has_referenced_versions_and_no_context_settings(shop: ReferenceRegistry) -> None:
    found = lines(exported(shop, subjects=("ord*",)))
    assert [(line["subject"], line["version"]) for line in found if line["kind"] == "version"] == [
        ("z-money", 1),
        ("orders", 1),
        ("orders", 2),
        ("orders", 3),
        (":.eu:orders", 1),
    ]
    assert [line.get("scope") for line in found if line["kind"] in ("context", "config", "mode")] == [
        "orders",
        "z-money",
    ]
    found = lines(exported(shop, contexts=(".eu",)))
    assert [line["kind"] for line in found] == ["header", "context", "version", "config", "end"]
    complete = snapshot_of(exported(shop))
    assert Selection((".eu",)).select_from(complete) == snapshot_of(exported(shop, contexts=(".eu",)))
    assert Selection((".",), ("z*",)).select_from(complete).subjects == ["z-money"]


def test_import_mode_is_set_per_subject_in_a_context_in_use(shop: ReferenceRegistry) -> None:
    target = ReferenceRegistry()
    target.register("other", fixed(9))
    target.stored["other", 1]["id"] = 77
    target.delete("other", 1)
    plan = planned(exported(shop), target)
    opened = [action for action in plan.actions if isinstance(action, SetMode) and action.mode == "IMPORT"]
    assert opened == [
        SetMode(":.eu:", "IMPORT"),
        SetMode("z-money", "IMPORT", force=True),
        SetMode("orders", "IMPORT", force=True),
    ]
    imported(exported(shop), target)
    assert target.stored["other", 1]["deleted"]
    assert target.modes == {"z-money": "READONLY", ":.__GLOBAL:": "READWRITE"}


def test_import_plans_missing_content_only(shop: ReferenceRegistry) -> None:
    target = ReferenceRegistry()
    imported(exported(shop), target)
    shop.modes["z-money"] = "READWRITE"
    shop.register(":.eu:orders", fixed(5))
    shop.delete("orders", 3)
    content = exported(shop)
    check_lines("actions_for_missing", planned(content, target).actions)
    imported(content, target)
    assert exported(target) == content


def test_import_restores_versions_deleted_in_the_target(shop: ReferenceRegistry) -> None:
    target = ReferenceRegistry()
    content = exported(shop)
    imported(content, target)
    target.configs["orders"].pop("alias")
    target.delete("orders", 3)
    target.delete(":.eu:orders", 1)
    imported(content, target)
    assert exported(target) == content


def problems(content: bytes, target: ReferenceRegistry) -> list[str]:
    plan = planned(content, target)
    assert not plan.actions
    assert not [call for call in target.calls if call[0] != "GET" and call[1].startswith("/mode")]
    return [problem.sentence for problem in plan.problems]


def test_conflicts_are_reported_before_anything_is_written(shop: ReferenceRegistry) -> None:
    content = exported(shop, contexts=(".",))
    target = ReferenceRegistry()
    target.register("a", fixed(8))
    other_content = problems(content, target)
    target = ReferenceRegistry()
    target.register("orders", '"F1"')
    target.stored["orders", 1]["id"] = 100
    other_id = problems(content, target)
    assert (len(other_content), len(other_id)) == (1, 1)
    check_lines("problems_of_conflicts", [*other_content, *other_id])
    target = ReferenceRegistry()
    target.register("a", fixed(3))
    target.stored["a", 1]["id"] = 100
    imported(content, target)
    assert target.stored["orders", 3]["id"] == 4
    assert imported(exported(target), ReferenceRegistry())


def test_same_schema_with_other_spelling_is_no_conflict() -> None:
    source, target = ReferenceRegistry(), ReferenceRegistry()
    source.register("a", '{"type": "string"}')
    target.register("a", '"string"')
    assert planned(exported(source), target).problems == ()
    # A rule set that the target's edition dropped is no conflict either.
    source.stored["a", 1]["ruleSet"] = {"domainRules": [{"name": "r"}]}
    assert planned(exported(source), target).problems == ()


def test_unsupported_versions_are_reported_or_skipped(shop: ReferenceRegistry) -> None:
    shop.stored["z-money", 1]["schemaType"] = "PROTOBUF"
    shop.stored["orders", 3]["references"] = [{"name": "x", "subject": "gone", "version": 4}]
    content = exported(shop).replace(
        b'"subject":"z-money","version":1,"id":1,"schemaType":"AVRO"',
        b'"subject":"z-money","version":1,"id":1,"schemaType":"PROTOBUF"',
    )
    content = b"\n".join([*content.splitlines()[:-1], json.dumps({"kind": "end", "lines": 15}).encode()])
    target = ReferenceRegistry()
    check_lines("problems_of_unsupported_versions", problems(content, target))
    snapshot = snapshot_of(content)
    part, plan, skipped = plan_importable(snapshot, read_target(RemoteRegistry(target), snapshot, ignore_progress))
    assert [str(problem.key) for problem in skipped] == [
        str(SubjectVersion("z-money", 1)),
        str(SubjectVersion("orders", 3)),
        str(SubjectVersion("orders", 1)),
    ]
    assert [version.key for version in part.versions] == [
        SubjectVersion("orders", 2),
        SubjectVersion(":.eu:orders", 1),
    ]
    assert not plan.problems


def test_read_only_target_is_reported(shop: ReferenceRegistry) -> None:
    target = ReferenceRegistry()
    target.modes[":.:"] = "READONLY"
    check_lines("problems_of_a_read_only_target", problems(exported(shop), target))


def test_read_only_context_is_reported_without_its_line_in_the_file(shop: ReferenceRegistry) -> None:
    target = ReferenceRegistry()
    target.modes[":.eu:"] = "READONLY"
    found = problems(exported(shop, contexts=(".eu",), subjects=("*",)), target)
    check_lines("problems_of_a_read_only_context", found)


def test_circular_references_are_reported(shop: ReferenceRegistry) -> None:
    shop.stored["z-money", 1]["references"] = [{"name": "x", "subject": "orders", "version": 1}]
    check_lines("problems_of_circular_references", problems(exported(shop), ReferenceRegistry()))


class Rejecting(ReferenceRegistry):
    """Rejects one schema, or assigns its own ids."""

    def __init__(self, rejected: str = "", ids_from: int = 0) -> None:
        super().__init__()
        self.rejected = rejected
        self.ids_from = ids_from

    def _post_subjects(self, rest: list[str], query: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        if self.rejected and body["schema"] == self.rejected:
            raise errors.InvalidSchema(message="not today")
        response = super()._post_subjects(rest, query, body)
        return {**response, "id": response["id"] + self.ids_from}


def test_rejected_versions_leave_target_in_import_mode_unless_skipped(shop: ReferenceRegistry) -> None:
    content = exported(shop)
    target = Rejecting(rejected=fixed(1))
    result = execute_actions(
        RemoteRegistry(target), planned(content, target).actions, ignore_progress, skip_rejected=False
    )
    assert not result.is_finished
    assert [problem.key for problem in result.rejected] == [SubjectVersion("z-money", 1), SubjectVersion("orders", 1)]
    assert "not today" in result.rejected[0].sentence and "z-money version 1" in result.rejected[1].sentence
    assert target.modes[":.:"] == "IMPORT"
    assert not target.configs
    result = execute_actions(
        RemoteRegistry(target), planned(content, target).actions, ignore_progress, skip_rejected=True
    )
    assert result.is_finished
    assert target.modes[":.:"] == "READWRITE"
    skipped = {problem.key for problem in result.rejected if problem.key}
    assert find_missing_versions(RemoteRegistry(target), snapshot_of(content), ignore_progress, skipped) == []
    check_lines(
        "problems_after_an_import",
        find_missing_versions(RemoteRegistry(target), snapshot_of(content), ignore_progress, ()),
    )
    target.rejected = ""
    target.modes["z-money"] = "READWRITE"
    imported(content, target)
    assert exported(target) == content


def test_rejected_version_is_reported_once_and_not_deleted() -> None:
    source = ReferenceRegistry()
    source.register("a", fixed(1))
    source.delete("a", 1)
    target = Rejecting(rejected=fixed(1))
    result = execute_actions(
        RemoteRegistry(target), planned(exported(source), target).actions, ignore_progress, skip_rejected=True
    )
    assert [problem.key for problem in result.rejected] == [SubjectVersion("a", 1)]
    check_lines("actions_with_a_rejected_version", result.done)
    assert not [call for call in target.calls if call[0] == "DELETE"]


@given(st.lists(st.tuples(st.integers(0, 4), st.frozensets(st.integers(0, 4), max_size=3)), max_size=12))
def test_parallel_tasks_have_the_result_of_sequential_ones(shape: list[tuple[int, frozenset[int]]]) -> None:
    @dataclass(frozen=True)
    class Sum:
        """Sets a resource to one more than the sum of the resources that it reads and itself."""

        number: int
        written: str
        read: frozenset[str]

        def __call__(self, values: dict[str, int]) -> None:
            values[self.written] = self.number + sum(values.get(name, 0) for name in {self.written, *self.read})

    tasks = [Sum(n, str(one), frozenset(map(str, others))) for n, (one, others) in enumerate(shape)]
    sequential: dict[str, int] = {}
    parallel: dict[str, int] = {}
    progress = [0]
    for task in tasks:
        task(sequential)
    run_parallel(tasks, lambda task: task(parallel), progress.append)
    assert parallel == sequential
    assert progress[-1] == len(tasks)
    assert progress == sorted(progress)


def test_target_that_assigns_other_ids_stops_the_import(shop: ReferenceRegistry) -> None:
    target = Rejecting(ids_from=5)
    with pytest.raises(ImportStopped, match=r"z-money version 1 with id 1\b.*\bid 6\b"):
        imported(exported(shop), target)


def test_source_that_changes_during_export_is_read_again(shop: ReferenceRegistry) -> None:
    changes = iter(range(20, 40))

    class Busy(RemoteRegistry):
        times = 1

        def mode(self, scope: str) -> str | None:
            if scope == "orders" and self.times:
                self.times -= 1
                shop.register("orders", fixed(next(changes)))
            return super().mode(scope)

    remote = Busy(shop)
    assert read_registry(remote, Selection(), ignore_progress).versions[-2].version == 4
    remote.times = 9
    with pytest.raises(RegistryChanged, match="READONLY"):
        read_registry(remote, Selection(), ignore_progress)


HEADER = '{"kind":"header","fileType":"schema registry export","format":1}' + "\n"
VERSION = '{"kind":"version","subject":"a","version":1,"id":1,"schema":"1"}' + "\n"
MODE = '{"kind":"mode","scope":"a","mode":"IMPORT"}' + "\n"
END = '{"kind":"end","lines":1}' + "\n"


def test_errors_of_an_export_file_name_the_line() -> None:
    contents = {
        "empty": "",
        "zip file": "PK\x03\x04",
        "deep JSON": "[" * 100_000,
        "no header": VERSION,
        "newer format": HEADER.replace("1}", "2}"),
        "no last line": HEADER + VERSION,
        "cut line": HEADER + VERSION[:-9],
        "version twice": HEADER + VERSION + VERSION,
        "id is text": HEADER + VERSION.replace('"id":1', '"id":"1"'),
        "id is a boolean": HEADER + VERSION.replace('"id":1', '"id":true'),
        "no id": HEADER + VERSION.replace('"id":1,', ""),
        "unknown key": HEADER + VERSION.replace('"id"', '"delted":true,"id"'),
        "reference is a number": HEADER + VERSION.replace('"id"', '"references":[3],"id"'),
        "unknown kind": HEADER + MODE.replace('"mode"', '"more"', 1),
        "unknown mode": HEADER + MODE.replace("IMPORT", "OFF"),
        "mode of a missing context": HEADER + MODE.replace('"a"', '":.eu:"') + END.replace("1", "2"),
        "missing lines": HEADER + END.replace("1", "2"),
        "changed lines": HEADER + END.replace("}", ',"sha256":"00"}'),
        "lines after the last": HEADER + END + VERSION,
    }
    messages = {}
    for case, content in contents.items():
        with pytest.raises(ExportFileInvalid) as rejected:
            read_snapshot(io.BytesIO(content.encode()), "e")
        messages[case] = str(rejected.value)
    found = case_lines(messages.items())
    assert found == golden("messages/registry_export_file.txt", found)


def test_example_in_the_documentation_is_a_valid_file() -> None:
    text = page("docs/registry.md")
    example = text.partition("### The file")[2].partition("```json\n")[2].partition("```")[0]
    snapshot = snapshot_of(example.replace(',"sha256":"…"', "").encode())
    check_lines("actions_of_the_documentation", plan_import(snapshot, TargetContent()).actions)


@given(st.text(), st.text())
@example("", "")
def test_any_text_survives_a_file(text: str, name: str) -> None:
    version = ExportedVersion(name, 1, 1, text, metadata=json_text({"properties": {name: text}}))
    snapshot = Snapshot(versions=(version,))
    out = io.BytesIO()
    write_snapshot(snapshot, out)
    assert snapshot_of(out.getvalue()) == snapshot
