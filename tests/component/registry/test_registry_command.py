"""The commands `headrace registry subjects`, `versions`, `show`, `lookup`, `level`, `mode`, `delete` and `history`."""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.registry.access.authenticator import RegistryUsersFile
from headrace.registry.access.passwords import Cost, PasswordHash
from headrace.registry.access.users import user_line
from headrace.registry.client import RegistryClient
from headrace.registry.domain import SchemaReference
from headrace.registry.operation.audit_log import AuditLog
from headrace.registry.storage.database import sqlite_url
from support.pages import page
from support.registry.registry_calls import STRING, USER_1, USER_2
from support.registry.served_registry import ServedRegistry, serve_registry
from support.terminals import Terminal

LOGS = "logs"


@dataclass
class Ran:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Ran]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedRegistry]:
    (tmp_path / LOGS).mkdir()
    log = AuditLog(str(tmp_path / LOGS / "registry-audit.jsonl"))
    with serve_registry(sqlite_url(tmp_path / "registry.db"), audit_log=log) as registry:
        yield registry


@pytest.fixture
def client(served: ServedRegistry) -> RegistryClient:
    return served.client


@pytest.fixture
def run(served: ServedRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str, url: str = served.url) -> Ran:
        capsys.readouterr()
        is_local = arguments[0] == "history"
        where = ("--data-dir", str(tmp_path)) if is_local else ("--registry-url", url)
        exit_code = main(["registry", *arguments, *where])
        return Ran(exit_code, *capsys.readouterr())

    return command


def lines(ran: Ran) -> list[list[str]]:
    """The rows of a printed table without its header and the totals above it."""
    assert ran.exit_code == 0, ran.err
    return [line.split() for line in ran.out.splitlines()[3:]]


def test_subjects_are_listed_in_one_request_by_pattern_prefix_and_state(
    run: Run, client: RegistryClient, served: ServedRegistry
) -> None:
    for name in ("orders-value", "orders-key", "users-value", ":.eu:orders-value"):
        client.register(name, STRING)
    client.delete_subject("orders-key")
    served.calls.clear()
    assert lines(run("subjects")) == [[":.eu:orders-value"], ["orders-value"], ["users-value"]]
    assert served.calls == {"GET /subjects": 1}
    assert lines(run("subjects", "orders*")) == [["orders-value"]]
    assert lines(run("subjects", "--prefix", ":.eu:")) == [[":.eu:orders-value"]]
    assert lines(run("subjects", "orders*", "--deleted")) == [["orders-key", "deleted"], ["orders-value"]]
    misspelt = run("subjects", "order-value")
    assert (misspelt.exit_code, "did you mean orders-value?" in misspelt.err) == (2, True)
    assert run("subjects", "orders*", "--deleted", "--format", "json").json["subjects"] == [
        {"subject": "orders-key", "deleted": True},
        {"subject": "orders-value", "deleted": False},
    ]


def test_versions_have_their_ids_and_states(run: Run, client: RegistryClient) -> None:
    ids = [client.register("s", text).schema_id for text in (USER_1, USER_2)]
    client.delete_version("s", 1)
    assert lines(run("versions", "s")) == [["2", str(ids[1])]]
    assert lines(run("versions", "s", "--deleted")) == [["2", str(ids[1])], ["1", str(ids[0]), "deleted"]]
    client.delete_subject("s")
    found = run("versions", "s", "--deleted", "--format", "json").json["versions"]
    assert [(row["version"], row["id"], row["deleted"]) for row in found] == [(1, ids[0], True), (2, ids[1], True)]
    missing = run("versions", "s")
    assert (missing.exit_code, "subject s does not exist" in missing.err) == (2, True)


def test_show_prints_the_schema_its_references_and_its_users(run: Run, client: RegistryClient) -> None:
    money = client.register("money", '{"type":"fixed","name":"shop.Money","size":8}')
    text = '{"type":"record","name":"Bill","fields":[{"name":"sum","type":"shop.Money"}]}'
    reference = SchemaReference("shop.Money", "money", 1)
    bill = client.register("bill", text, [reference])
    client.register("bill-copy", text, [reference])
    shown = run("show", "bill", "--format", "json").json
    assert (shown["subject"], shown["version"], shown["id"]) == ("bill", 1, bill.schema_id)
    assert shown["references"] == ["shop.Money=money:1"]
    assert shown["schema"] == json.loads(text)
    assert run("show", "money", "1", "--format", "json").json["referenced_by_ids"] == [bill.schema_id]
    by_id = run("show", "--id", str(bill.schema_id))
    assert "used by: bill:1, bill-copy:1" in by_id.out
    assert json.loads(by_id.out.partition("\n\n")[2]) == json.loads(text)
    assert run("show", "--id", str(money.schema_id)).exit_code == 0
    for arguments, problem in [
        (("--id", "999"), "Schema 999 not found"),
        (("bill", "7"), "subject bill version 7 does not exist"),
        (("bill", "newest"), "expected a number or latest"),
        ((), "name a subject"),
    ]:
        ran = run("show", *arguments)
        assert (ran.exit_code, problem in ran.err) == (2, True), ran.err


def test_show_by_id_uses_the_context_of_the_subject(run: Run, client: RegistryClient) -> None:
    client.register("other", USER_1)
    client.register(":.eu:s", STRING)
    assert run("show", ":.eu:s", "--id", "1", "--format", "json").json["schema"] == "string"


def test_lookup_finds_the_version_or_exits_with_findings(run: Run, client: RegistryClient, tmp_path: Path) -> None:
    client.register("money", '{"type":"fixed","name":"shop.Money","size":8}')
    text = '{"type":"record","name":"Bill","fields":[{"name":"sum","type":"shop.Money"}]}'
    bill = client.register("bill", text, [SchemaReference("shop.Money", "money", 1)])
    file = tmp_path / "bill.avsc"
    file.write_text(text)
    arguments = ("lookup", "bill", str(file), "--reference", "shop.Money=money:1", "--format", "json")
    assert run(*arguments).json == {
        "format": 1,
        "registered": True,
        "subject": "bill",
        "version": 1,
        "id": bill.schema_id,
    }
    client.delete_subject("bill")
    ran = run(*arguments)
    assert (ran.exit_code, ran.json["registered"]) == (1, False)
    assert run(*arguments, "--deleted").json["version"] == 1
    wrong = run("lookup", "bill", str(file))
    assert (wrong.exit_code, f"the schema in {file} is not valid" in wrong.err) == (2, True)
    assert "expected NAME=SUBJECT:VERSION" in run("lookup", "bill", str(file), "--reference", "x").err
    assert "No such file" in run("lookup", "bill", str(tmp_path / "none")).err


def test_lookup_reads_standard_input(run: Run, client: RegistryClient, monkeypatch: pytest.MonkeyPatch) -> None:
    client.register("s", STRING)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(STRING.encode())))
    assert run("lookup", "s", "-").exit_code == 0


def test_level_is_shown_set_and_unset(run: Run, client: RegistryClient) -> None:
    client.register("s", STRING)
    assert run("level").out == "default context: BACKWARD\n"
    assert run("level", "s").out == "s: BACKWARD, inherited\n"
    assert run("level", "s", "full").out == "s: FULL (was inherited)\n"
    assert client.config("s")["compatibilityLevel"] == "FULL"
    assert run("level", ":.:", "NONE").exit_code == 0
    assert run("level", "s", "--unset", "--format", "json").json == {
        "format": 1,
        "subject": "s",
        "level": "NONE",
        "inherited": True,
        "before": "FULL",
    }
    assert run("level", "s", "--unset").exit_code == 0
    assert run("level", ":.eu:", "FORWARD").out == ":.eu:: FORWARD (was inherited)\n"
    assert run("level", ":.eu:s").out == ":.eu:s: FORWARD, inherited\n"
    assert "needs a subject before it" in run("level", "FULL").err
    assert "contradict" in run("level", "s", "FULL", "--unset").err
    with pytest.raises(SystemExit):
        run("level", "s", "HIGH")


def test_unsetting_the_level_keeps_other_settings(run: Run, client: RegistryClient) -> None:
    client.set_config({"compatibility": "FULL", "normalize": True}, "s")
    assert run("level", "s", "--unset").exit_code == 0
    assert client.config("s", inherited=False) == {"normalize": True}


def test_mode_is_shown_set_and_unset(run: Run, client: RegistryClient) -> None:
    client.register("s", STRING)
    assert run("mode").out == "default context: READWRITE\n"
    assert run("mode", "s", "READONLY").out == "s: READONLY (was inherited)\n"
    refused = run("delete", "s")
    assert (refused.exit_code, "see: headrace registry mode s" in refused.err) == (2, True)
    assert run("mode", "s", "--unset").out == "s: READWRITE, inherited (was READONLY)\n"
    assert run("mode", "s", "--unset").exit_code == 0


def test_import_mode_asks_before_it_deletes(run: Run, client: RegistryClient) -> None:
    client.register("s", STRING)
    client.delete_subject("s")
    refused = run("mode", "s", "IMPORT")
    assert (refused.exit_code, "--yes" in refused.err) == (2, True)
    assert client.versions("s", deleted=True) == [1]
    assert run("mode", "s", "IMPORT", "--yes").exit_code == 0
    assert "does not exist" in run("versions", "s", "--deleted").err


def test_delete_is_soft_and_permanent_only_with_confirmation(
    run: Run, client: RegistryClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in (USER_1, USER_2):
        client.register("s", text)
    early = run("delete", "s", "--permanent", "--yes")
    assert (early.exit_code, "first run: headrace registry delete s" in early.err) == (2, True)
    assert run("delete", "s", "--version", "1").out.startswith("s: version 1 soft-deleted")
    assert "is soft-deleted already" in run("delete", "s", "--version", "1").err
    assert run("delete", "s", "--format", "json").json["versions"] == [2]
    refused = run("delete", "s", "--permanent")
    assert (refused.exit_code, "versions 1, 2" in refused.err, "--yes" in refused.err) == (2, True, True)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert run("delete", "s", "--permanent").exit_code == 2
    assert client.versions("s", deleted=True) == [1, 2]
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert run("delete", "s", "--version", "1", "--permanent").exit_code == 0
    assert run("delete", "s", "--permanent", "--yes").out == "s: version 2 permanently deleted\n"
    assert "does not exist" in run("delete", "s", "--permanent", "--yes").err


def test_delete_of_a_referenced_version_names_the_reference(run: Run, client: RegistryClient) -> None:
    client.register("money", '{"type":"fixed","name":"Money","size":8}')
    client.register("bill", '{"type":"array","items":"Money"}', [SchemaReference("Money", "money", 1)])
    refused = run("delete", "money", "--version", "1")
    assert refused.exit_code == 2
    assert "subject money version 1 cannot be deleted" in refused.err


def test_errors_of_permissions_name_the_remedy(tmp_path: Path, run: Run) -> None:
    line = user_line("shop", PasswordHash.of("secret", b"some salt", Cost(log2_n=4, r=1, p=1)))
    (tmp_path / "users").write_text(f"{line}\ngrant shop write shop-*\n")
    users = RegistryUsersFile(tmp_path / "users")
    with serve_registry(sqlite_url(tmp_path / "secured.db"), users=users) as secured:
        url = secured.url.replace("http://", "http://shop:secret@")
        RegistryClient(url).register("shop-a", STRING)
        for arguments, user_url, problem, remedy in [
            (("subjects",), secured.url, "requires a user and password", "registry.client_user"),
            (("subjects",), url.replace("secret", "wrong"), "wrong password", "registry.client_user"),
            (("level", "shop-a", "FULL"), url, "denied operation Admin on", "users file"),
            (("versions", "other"), url, "denied operation Read on", "users file"),
            (("delete", "shop-a", "--permanent", "--yes"), url, "denied operation Admin", "users file"),
        ]:
            ran = run(*arguments, url=user_url)
            assert (ran.exit_code, problem in ran.err, remedy in ran.err) == (2, True, True), ran.err
            assert ran.err.count("registry.client_user") == 1, "the remedy is stated once"
            assert len(ran.err.splitlines()) == 1
            assert "secret" not in ran.err
        assert lines(run("subjects", url=url)) == [["shop-a"]]
        assert run("delete", "shop-a", url=url).exit_code == 0
    unreachable = run("subjects", url=secured.url)
    assert (unreachable.exit_code, "cannot be reached" in unreachable.err) == (2, True)


def test_history_tells_who_changed_a_subject(run: Run, client: RegistryClient, tmp_path: Path) -> None:
    client.set_compatibility("FULL")
    schema_id = client.register("s", STRING).schema_id
    client.register("t", STRING)
    client.set_compatibility("NONE", "s")
    client.set_mode("READONLY", "s")
    client.delete_mode("s")
    client.delete_subject("s")
    ran = run("history", "s")
    changes = [line.split("127.0.0.1")[1].strip() for line in reversed(ran.out.splitlines()[3:])]
    assert changes == [
        "configuration changed of :.:, compatibility unset → FULL",
        f"version registered, version 1 (id {schema_id})",
        "configuration changed, compatibility unset → NONE",
        "mode changed, unset → READONLY",
        "mode removed, READONLY → unset",
        f"subject deleted, version 1 (ids {schema_id})",
    ]
    times = {line.split("  ")[0][10:] for line in ran.out.splitlines()[3:]}
    assert all(re.fullmatch(r" \d\d:\d\d:\d\dZ", time) for time in times), "times are in UTC"
    assert len(run("history", "s", "--format", "json").json["changes"]) == 6
    assert "has no change of :.eu:none" in run("history", ":.eu:none").out


def test_history_without_a_file_says_where_the_log_is(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / LOGS / "registry-audit.jsonl").unlink()
    missing = run("history", "s")
    assert (missing.exit_code, "does not exist; run the command on the registry's host" in missing.err) == (2, True)
    for value, words in (("off", "turned off"), ("-", "standard error")):
        monkeypatch.setenv("HEADRACE__REGISTRY__AUDIT_LOG", value)
        ran = run("history", "s")
        assert (ran.exit_code, words in ran.err) == (2, True)


def test_commands_in_errors_quote_the_subject_for_a_shell(run: Run, client: RegistryClient) -> None:
    client.register("it's a/b", STRING)
    refused = run("delete", "it's a/b", "--permanent", "--yes")
    assert (refused.exit_code, refused.out) == (2, "")
    command = refused.err.partition("first run: headrace registry ")[2]
    assert shlex.split(command) == ["delete", "it's a/b"]
    assert run(*shlex.split(command)).exit_code == 0
    assert run("delete", "it's a/b", "--permanent", "--yes").exit_code == 0


def test_page_lists_the_keys_of_json(run: Run, client: RegistryClient, tmp_path: Path) -> None:
    client.register("s", STRING)
    (tmp_path / "s.avsc").write_text(STRING)
    documents = {
        verb: run(verb, *arguments, "--format", "json").json
        for verb, arguments in {
            "subjects": (),
            "versions": ("s",),
            "show": ("s",),
            "lookup": ("s", str(tmp_path / "s.avsc")),
            "level": ("s", "FULL"),
            "mode": ("s",),
            "history": ("s",),
            "delete": ("s",),
        }.items()
    }
    text = page("docs/registry.md").partition("prints one object with")[2].partition("###")[0]
    rows = re.findall(r"^\| (`[^|]*`) \| (.*) \|$", text, re.M)
    listed = {verb: set(re.findall(r"`(\w+)`", keys)) for verbs, keys in rows for verb in re.findall(r"`(\w+)`", verbs)}
    for verb, document in documents.items():
        inner = [one for rows in document.values() if isinstance(rows, list) for one in rows if isinstance(one, dict)]
        inner_keys = {key for one in inner for key in one} if verb != "history" else set()
        other = {"level": {"mode"}, "mode": {"level"}}.get(verb, set())
        assert document["format"] == 1
        assert {*document, *inner_keys} - {"format"} == listed[verb] - other, verb
