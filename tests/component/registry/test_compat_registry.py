"""`headrace compat check --against-registry` and `headrace schema` against a registry or a scripted server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from werkzeug.wrappers import Request, Response

from headrace.cli import main
from headrace.registry.client import SchemaReference
from support.registry.served_registry import ServedRegistry, serve_registry

ORDER = '{"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "id", "type": "%s"}%s]}'
NOTE = ', {"name": "note", "type": "string"}'
HEADER = '{"type": "record", "name": "Header", "namespace": "shop", "fields": [{"name": "time", "type": "long"}]}'
PAY = '{"type": "record", "name": "Pay", "namespace": "shop", "fields": [{"name": "header", "type": "Header"}]}'

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def registry(sqlite_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedRegistry]:
    directory = tmp_path / "work"
    (directory / "schemas").mkdir(parents=True)
    monkeypatch.chdir(directory)
    with serve_registry(sqlite_database_url) as registry:
        yield registry


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture(scope="module")
def one_subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRegistry]:
    """A registry with version 1 of orders-value, which tests do not change."""
    with serve_registry(f"sqlite:///{tmp_path_factory.mktemp('registry')}/registry.db") as registry:
        registry.client.register("orders-value", ORDER % ("long", ""))
        yield registry


def write(**files: str) -> None:
    for name, text in files.items():
        Path(f"schemas/{name.replace('_', '-')}.avsc").write_text(text)


def test_each_subject_is_checked_at_its_level(registry: ServedRegistry, run: Run) -> None:
    client = registry.client
    for subject in ("orders-value", "strict-value", "free-value"):
        client.register(subject, ORDER % ("int", ""))
        client.register(subject, ORDER % ("long", ""))
    client.set_compatibility("FULL_TRANSITIVE", "strict-value")
    client.set_compatibility("NONE", "free-value")
    client.set_compatibility("BACKWARD", "orders-value")
    write(orders=ORDER % ("double", ""), strict=ORDER % ("float", ""), free='"string"', new='"int"')
    code, out, err = run("compat", "check", "schemas", "--against-registry", registry.url, "--format", "json")
    assert (code, err) == (1, "")
    found = {report["subject"]: report for report in json.loads(out)["reports"]}
    assert {subject: report["level"] for subject, report in found.items()} == {
        "orders-value": "BACKWARD",
        "strict-value": "FULL_TRANSITIVE",
        "free-value": "NONE",
        "new-value": "BACKWARD",
    }
    assert len({report["level_origin"] for report in found.values()}) == 1, "the scope of a level is unknown"
    assert {subject for subject, report in found.items() if not report["compatible"]} == {"strict-value"}
    assert found["strict-value"]["compared"] == [
        {"version": 2, "name": "strict-value version 2"},
        {"version": 1, "name": "strict-value version 1"},
    ]
    assert (found["new-value"]["new"], found["orders-value"]["known_versions"]) == (True, 2)
    _, out, _ = run("compat", "check", "schemas", "--against-registry", registry.url, "--verbose")
    assert "subject: strict-value; level FULL_TRANSITIVE " in out
    assert "subject: orders-value; level BACKWARD " in out
    code, out, _ = run("compat", "check", "schemas/orders.avsc", "--against-registry", registry.url, "--level", "full")
    assert (code, "FULL with orders-value version 2" in out) == (1, True)
    assert run("compat", "check", "schemas", "--against-registry", registry.url, "--require-subject")[0] == 1


@pytest.mark.parametrize("is_listing_known", [True, False])
def test_many_schemas_are_fetched_with_one_request(registry: ServedRegistry, run: Run, is_listing_known: bool) -> None:
    client = registry.client
    for number in range(26):
        client.register(f"many-{number:02}-value", ORDER % ("long", ""))
        write(**{f"many_{number:02}": ORDER % ("long", NOTE if number == 7 else "")})
    client.register("elsewhere", '"int"')
    if not is_listing_known:
        registry.respond = lambda request: (
            Response('{"error_code":404,"message":"HTTP 404 Not Found"}', 404) if request.path == "/schemas" else None
        )
    registry.calls.clear()
    code, out, _ = run("compat", "check", "schemas", "--against-registry", registry.url, "--quiet")
    assert code == 1
    assert "schemas/many-07.avsc: " in out and "BACKWARD with many-07-value version 1" in out
    assert re.search(r"\b26\b.*\b1\b.*\n$", out)
    one_by_one = sum(count for call, count in registry.calls.items() if call.endswith("/versions/latest"))
    assert one_by_one == (0 if is_listing_known else 26)
    assert registry.calls["GET /schemas"] == 1


def test_deleted_file_of_a_registered_subject_is_reported_with_a_git_revision(
    registry: ServedRegistry, run: Run
) -> None:
    """Other subjects of the registry may belong to other teams. Only git knows which files were deleted."""
    write(orders=ORDER % ("long", ""), private=HEADER, kept=HEADER)
    for arguments in (
        ["init", "-q", "-b", "main", "."],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "first"],
    ):
        subprocess.run(["git", *arguments], check=True)
    registry.client.register("orders-value", ORDER % ("long", ""))
    registry.client.register("kept-value", HEADER)
    Path("schemas/orders.avsc").unlink()
    Path("schemas/private.avsc").unlink()
    check = ("compat", "check", "schemas", "--against-registry", registry.url)
    code, out, _ = run(*check, "--since", "main")
    assert code == 1
    assert "schemas/orders.avsc: " in out and "orders-value version 1" in out and "private" not in out
    assert run(*check, "--since", "main", "--subject", "*/orders.avsc=kept-value")[0] == 0, (
        "another file has the subject"
    )
    assert run(*check)[0] == 0
    assert run("schema", "register", "schemas", "--since", "main", "--registry-url", registry.url)[0] == 0
    registry.client.set_compatibility("NONE", "orders-value")
    assert run(*check, "--since", "main")[0] == 0


def test_since_compares_users_of_a_changed_type_in_an_unselected_file(
    registry: ServedRegistry, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    write(pay=PAY)
    Path("types").mkdir()
    Path("types/header.avsc").write_text(HEADER)
    assert run("schema", "register", "schemas", "--registry-url", registry.url)[0] == 0
    for command in ("init -q -b main .", "add .", "-c user.name=a -c user.email=a@example.com commit -qm 1"):
        subprocess.run(["git", *command.split()], check=True)
    Path("types/header.avsc").write_text(HEADER.replace("long", "string"))
    check = ("compat", "check", "schemas", "--against-registry", registry.url)
    code, out, _ = run(*check, "--since", "main")
    assert (code, "schemas/pay.avsc: incompatible" in out) == (1, True)
    assert run("schema", "register", "schemas", "--since", "main", "--registry-url", registry.url)[0] == 1


@pytest.mark.parametrize("is_of_database", [False, True])
def test_unregistered_names_do_not_pass(
    registry: ServedRegistry, run: Run, tmp_path: Path, is_of_database: bool
) -> None:
    flags = ("--against-db", f"sqlite:///{tmp_path}/registry.db")
    check = ("compat", "check", "schemas", *(flags if is_of_database else ("--against-registry", registry.url)))
    write(orders=ORDER % ("long", NOTE))
    assert run(*check)[0] == 0, "a registry without subjects"
    registry.client.register("shop.Order", ORDER % ("long", ""))
    code, out, err = run(*check)
    assert (code, out) == (2, "")
    for named in ("orders-value", "shop.Order", "schemas/orders.avsc", "--subject-strategy record", "--all-new"):
        assert named in err
    one = (*check[:2], "schemas/orders.avsc", *check[3:])
    assert run(*one)[0] == 2
    assert run(*check, "--all-new")[0] == 0
    assert run(*check, "--subject-strategy", "record")[0] == 1
    write(orders=HEADER, more=HEADER, others=HEADER)
    code, _, err = run(*check)
    assert (code, bool(re.search(r"shop\.Order.*--subject-strategy\b", err))) == (2, True)
    assert run(*one)[0] == 0, "one schema may well be new"
    assert run(*check, "--subject", ":.eu:{topic}")[0] == 0, "nothing is in that context"
    registry.client.register("more-value", HEADER)
    assert run(*check)[0] == 0
    registry.client.delete_subject("more-value")
    assert run("schema", "register", "schemas", "--registry-url", registry.url)[0] == 0


def test_subject_hidden_from_lists_is_not_treated_as_new(registry: ServedRegistry, run: Run) -> None:
    """A registry omits unreadable subjects from lists and denies direct access."""
    for number in range(30):
        registry.client.register(f"many-{number:02}-value", ORDER % ("long", ""))
        write(**{f"many_{number:02}": ORDER % ("long", "")})

    def hide(request: Request) -> Response | None:
        if request.path == "/subjects":
            return Response(json.dumps([f"many-{number:02}-value" for number in range(29)]))
        if request.path.startswith("/subjects/many-29"):
            return Response('{"error_code":40301,"message":"User is denied operation Read"}', 403)
        return None

    registry.respond = hide
    code, out, err = run("compat", "check", "schemas", "--against-registry", registry.url)
    assert (code, out) == (4, "")
    assert "Read" in err


@pytest.mark.parametrize("is_listing_known", [True, False])
def test_transitive_check_fetches_all_versions_of_many_schemas(
    registry: ServedRegistry, run: Run, is_listing_known: bool
) -> None:
    client = registry.client
    for number in range(26):
        client.register(f"many-{number:02}-value", ORDER % ("int", ""))
        client.register(f"many-{number:02}-value", ORDER % ("long", ""))
        write(**{f"many_{number:02}": ORDER % ("double" if number == 3 else "float", "")})
    client.set_compatibility("FORWARD_TRANSITIVE", "many-03-value")
    if not is_listing_known:
        registry.respond = lambda request: Response("{}", 404) if request.path == "/schemas" else None
    registry.calls.clear()
    check = ("compat", "check", "schemas", "--against-registry", registry.url, "--format", "json")
    code, out, _ = run(*check, "--all-versions")
    assert code == 1
    found = {report["subject"]: report for report in json.loads(out)["reports"]}
    assert {subject for subject, report in found.items() if not report["compatible"]} == {"many-03-value"}
    for report in found.values():
        assert [version["version"] for version in report["compared"]] == [2, 1]
    assert registry.calls["GET /schemas"] == 2
    assert registry.calls["GET /subjects/many-07-value/versions/1"] == (0 if is_listing_known else 1)


def test_check_with_contexts_and_references(registry: ServedRegistry, run: Run) -> None:
    registry.client.register(":.eu:orders-value", ORDER % ("string", ""))
    registry.client.register("orders-value", ORDER % ("long", ""))
    write(orders=ORDER % ("string", ""), pay=PAY, header=HEADER)
    arguments = ("--registry-url", registry.url)
    assert run("schema", "register", "schemas/pay.avsc", *arguments)[0] == 0
    assert run("compat", "check", "schemas", "--against-registry", registry.url)[0] == 1
    check = ("compat", "check", "schemas/orders.avsc", "--against-registry", registry.url)
    assert run(*check, "--subject", ":.eu:{topic}-value")[0] == 0
    write(header=HEADER.replace("long", "string"))
    code, out, _ = run("compat", "check", "schemas/pay.avsc", "--against-registry", registry.url)
    assert code == 1
    assert re.search(r'"header\.time".*string.*long.*pay-value version 1', out)


@pytest.mark.parametrize(
    ("response", "named"),
    [
        (Response('{"error_code":401,"message":"Unauthorized"}', 401), "Unauthorized"),
        (Response('{"error_code":40301,"message":"may not read"}', 403), "may not read"),
        (Response("<html>proxy</html>", 200), ""),
        (Response("[]", 200), ""),
        (Response('{"compatibilityLevel":"SIDEWAYS"}', 200), "'SIDEWAYS'"),
        (Response("", 302, {"Location": "https://login.example.com/"}), "https://login.example.com"),
        (Response('{"error_code":50001,"message":"Error in the backend"}', 501), "Error in the backend"),
        (Response('{"error_code":404,"message":"HTTP 404 Not Found"}', 404), "404"),
        (Response("<html>404 page not found</html>", 404), "404"),
        (Response('{"error_code":42901,"message":"slow down"}', 429), "slow down"),
    ],
)
@pytest.mark.parametrize("at", ["/config", "/subjects/orders-value/versions/latest"])
def test_failed_requests_never_pass_the_check(
    one_subject: ServedRegistry,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    response: Response,
    named: str,
    at: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schemas").mkdir()
    registry = one_subject
    if at != "/config" and "SIDEWAYS" in response.get_data(as_text=True):
        named = ""
    monkeypatch.setattr("headrace.registry.client.transport.PAUSE_FIRST_S", 0.001)
    registry.respond = lambda request: response if request.path == at else None
    write(orders=ORDER % ("long", ""))
    code, out, err = run("compat", "check", "schemas", "--against-registry", registry.url, "--exit-zero")
    assert code == 4
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"registry {registry.url}: error: ")
    assert named in err


def test_rejected_credentials_are_never_shown(
    registry: ServedRegistry, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def refuse(request: Request) -> Response:
        seen.append(request.headers.get("Authorization"))
        return Response('{"error_code":401,"message":"Unauthorized"}', 401)

    registry.respond = refuse
    monkeypatch.setenv("HEADRACE__REGISTRY__CLIENT_USER", "ci")
    monkeypatch.setenv("HEADRACE__REGISTRY__CLIENT_PASSWORD", "opensesame")
    write(orders='"int"')
    code, out, err = run("compat", "check", "schemas", "--against-registry", registry.url)
    assert code == 4
    assert seen[0] is not None
    assert seen[0].startswith("Basic ")
    assert "opensesame" not in out + err


@pytest.mark.parametrize(
    "of_file", ['[compat]\nagainst = ["%s"]\n', '[compat]\nagainst = ["registry"]\n[registry]\nurl = "%s"\n']
)
def test_repository_settings_cannot_redirect_credentials(
    registry: ServedRegistry, run: Run, monkeypatch: pytest.MonkeyPatch, of_file: str
) -> None:
    monkeypatch.setenv("HEADRACE__REGISTRY__CLIENT_USER", "ci")
    monkeypatch.setenv("HEADRACE__REGISTRY__CLIENT_PASSWORD", "opensesame")
    write(orders='"int"')
    Path("headrace.toml").write_text(of_file % registry.url)
    code, out, err = run("compat", "check", "schemas")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "headrace.toml" in err and "opensesame" not in err
    assert not registry.calls
    if "[registry]" in of_file:
        assert run("schema", "register", "schemas")[0] == 2
    assert run("compat", "check", "schemas", "--against-registry", registry.url)[0] == 0
    assert run("compat", "check", "schemas", "--against", registry.url)[0] == 0
    monkeypatch.setenv("HEADRACE__REGISTRY__CLIENT_HOSTS", "127.0.0.1")
    assert run("compat", "check", "schemas")[0] == 0


def test_unreachable_registry_exits_with_failure(
    registry: ServedRegistry, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.registry.client.transport.PAUSE_FIRST_S", 0.001)
    write(orders='"int"', broken="{")
    code, out, err = run("compat", "check", "schemas", "--against-registry", "http://127.0.0.1:1", "--format", "json")
    assert code == 4
    assert [error["kind"] for error in json.loads(out)["errors"]] == ["registry", "invalid"]
    assert err.startswith("registry http://127.0.0.1:1: error: ")
    assert run("schema", "register", "schemas/orders.avsc", "--registry-url", "http://127.0.0.1:1")[0] == 4
    assert run("schema", "download", "--to", "x", "--registry-url", "http://127.0.0.1:1")[0] == 4
    code, _, err = run("compat", "check", "schemas", "--against-registry", "ftp://x")
    assert (code, err.count("\n")) == (2, 1)


def test_check_against_the_database_without_a_server(registry: ServedRegistry, run: Run, tmp_path: Path) -> None:
    registry.client.register("orders-value", ORDER % ("int", ""))
    registry.client.set_compatibility("FORWARD", "orders-value")
    write(orders=ORDER % ("long", ""))
    code, out, err = run("compat", "check", "schemas", "--against-db", f"sqlite:///{tmp_path}/registry.db")
    assert (code, err) == (1, "")
    assert "schemas/orders.avsc: " in out and "FORWARD with orders-value version 1" in out
    code, _, err = run("compat", "check", "schemas", "--against-db", f"sqlite:///{tmp_path}/nowhere/registry.db")
    assert (code, err.count("\n")) == (4, 1)


def test_register_orders_files_by_references_or_registers_none(registry: ServedRegistry, run: Run) -> None:
    url = ("--registry-url", registry.url)
    write(a_pay=PAY, header=HEADER, orders=ORDER % ("long", ""))
    code, out, _ = run("schema", "register", "schemas", *url, "--dry-run", "--format", "json")
    assert code == 0
    rows = json.loads(out)["schemas"]
    assert [(row["subject"], row["action"], row["version"]) for row in rows] == [
        ("header-value", "new subject", None),
        ("a-pay-value", "new subject", None),
        ("orders-value", "new subject", None),
    ]
    assert registry.client.subjects() == []
    assert run("schema", "register", "schemas", *url)[0] == 0
    reference = registry.client.version("a-pay-value", 1).references[0]
    assert (reference.name, reference.subject, reference.version) == ("shop.Header", "header-value", 1)
    _, out, _ = run("schema", "register", "schemas", *url, "--format", "json")
    assert {row["action"] for row in json.loads(out)["schemas"]} == {"unchanged"}
    write(a_pay=PAY.replace('"fields": [', '"fields": [{"name": "a", "type": "int", "default": 1}, '))
    write(orders=ORDER % ("long", NOTE))
    code, out, _ = run("schema", "register", "schemas", *url)
    assert code == 1
    assert "schemas/orders.avsc: " in out and "BACKWARD with orders-value version 1" in out
    assert registry.client.versions("a-pay-value") == [1], "nothing is registered when something cannot be"
    assert run("schema", "register", "schemas/missing.avsc", *url)[0] == 2
    write(orders='{"type": }')
    assert run("schema", "register", "schemas", *url)[0] == 3


def test_schema_of_another_context_is_registered_again(registry: ServedRegistry, run: Run) -> None:
    url = ("--registry-url", registry.url)
    registry.client.register(":.eu:orders-value", HEADER)
    write(orders=HEADER)
    assert run("schema", "lock", "schemas", *url)[0] == 1
    assert run("schema", "register", "schemas", *url)[0] == 0
    assert registry.client.subjects() == [":.eu:orders-value", "orders-value"]
    registry.client.set_config({"alias": ":.eu:orders-value"}, "bestellungen-value")
    write(bestellungen=HEADER)
    _, out, _ = run("schema", "register", "schemas/bestellungen.avsc", *url, "--format", "json")
    assert [row["action"] for row in json.loads(out)["schemas"]] == ["unchanged"]


def test_invalid_subject_is_reported(registry: ServedRegistry, run: Run) -> None:
    Path(os.fsdecode(b"schemas/\xff.avsc")).write_text('"int"')
    code, out, err = run("compat", "check", "schemas", "--against-registry", registry.url)
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_two_files_of_one_subject_are_rejected(registry: ServedRegistry, run: Run) -> None:
    write(orders=ORDER % ("long", ""), orders_value=ORDER % ("int", ""))
    _, out, _ = run("compat", "check", "schemas", "--against-registry", registry.url)
    assert re.search("note: orders-value .*schemas/orders-value.avsc", out)
    code, _, err = run("schema", "register", "schemas", "--registry-url", registry.url)
    assert code == 2
    assert re.search("^schemas/orders.avsc: error: .*orders-value .*schemas/orders-value.avsc", err, re.MULTILINE)


def test_lock_file_is_written_and_checked(registry: ServedRegistry, run: Run) -> None:
    url = ("--registry-url", registry.url)
    write(pay=PAY, header=HEADER)
    code, _, err = run("schema", "lock", "schemas", *url)
    assert code == 1
    assert [line.partition(":")[0] for line in err.splitlines()][:2] == ["schemas/header.avsc", "schemas/pay.avsc"]
    run("schema", "register", "schemas", *url)
    assert run("schema", "lock", "schemas", *url)[0] == 0
    assert run("schema", "lock", "schemas", *url, "--check")[0] == 0
    write(header=json.dumps(json.loads(HEADER), indent=4))
    assert run("schema", "lock", "schemas", *url, "--check")[0] == 0, "layout does not matter"
    write(header=HEADER.replace("long", "double"), more='"int"')
    code, out, _ = run("schema", "lock", "schemas", "--check", "--offline")
    assert code == 1
    differs, missing = out.splitlines()
    assert differs.startswith("FINDING: schemas/header.avsc: ") and "header-value version 1" in differs
    assert missing.startswith("FINDING: schemas/more.avsc: ")
    write(header=HEADER)
    Path("schemas/more.avsc").unlink()
    registry.client.delete_subject("pay-value")
    code, out, _ = run("schema", "lock", "schemas", *url, "--check")
    assert code == 1
    assert out.startswith("FINDING: schemas/pay.avsc: ") and "pay-value version 1" in out and out.count("\n") == 1
    Path("headrace.lock").write_text("{}")
    assert run("schema", "lock", "schemas", *url, "--check")[0] == 2


def test_downloaded_schemas_are_a_baseline(registry: ServedRegistry, run: Run) -> None:
    url = ("--registry-url", registry.url)
    write(pay=PAY, header=HEADER)
    run("schema", "register", "schemas", *url)
    registry.client.register("a/b", ORDER % ("int", ""))
    registry.client.register("a/b", ORDER % ("long", ""))
    run("schema", "download", "pay*", "--to", "planned", "--dry-run", *url)
    assert not Path("planned").exists()
    assert run("schema", "download", "pay*", "--to", "latest", *url)[0] == 0
    assert sorted(path.name for path in Path("latest").iterdir()) == ["header-value.avsc", "pay-value.avsc"]
    assert run("compat", "check", "schemas", "--against", "latest", "--require-subject")[0] == 0
    _, out, _ = run("schema", "download", "pay*", "--to", "latest", *url, "--format", "json")
    assert {row["action"] for row in json.loads(out)["schemas"]} == {"unchanged"}
    assert run("schema", "download", "--all-versions", "--to", "all", *url)[0] == 0
    assert sorted(str(path) for path in Path("all/a%2Fb").iterdir()) == ["all/a%2Fb/1.avsc", "all/a%2Fb/2.avsc"]
    write(ab=ORDER % ("long", ""))
    arguments = ("compat", "check", "schemas/ab.avsc", "--against", "all", "--subject", "a/b", "--level")
    assert run(*arguments, "FULL")[0] == 0
    assert run(*arguments, "FULL_TRANSITIVE")[0] == 1
    assert run("schema", "download", "nothing*", "--to", "latest", *url)[0] == 2


@pytest.mark.parametrize("every", [(), ("--all-versions",)])
def test_downloaded_file_names_stay_in_the_directory_and_are_unique(
    registry: ServedRegistry, run: Run, every: tuple[str, ...]
) -> None:
    names = ("..", ".", "", ".hidden", "a.", "a/../../b", "orders", "Orders", "ORDERS", "NUL", "com1.x", "..\\c", "ü")
    for name in names:
        registry.client.register(name, HEADER.replace("Header", f"R{len(registry.client.subjects())}"))
    for _ in range(2):
        code, out, err = run("schema", "download", "--to", "deep/all", *every, "--registry-url", registry.url)
        assert (code, err) == (0, "")
    assert set(out.split()) >= {"unchanged"}
    assert "updated" not in out
    assert [path.name for path in Path("deep").iterdir()] == ["all"]
    assert sorted(path.name for path in Path().iterdir()) == ["deep", "schemas"]
    found = [path.relative_to("deep/all") for path in Path("deep/all").rglob("*.avsc")]
    assert len(found) == len(names)
    for path in found:
        assert len(path.parts) == (2 if every else 1)
        assert not path.name.startswith(".")
        assert not path.parts[0].removesuffix(".avsc").lower().startswith((".", "nul", "com1"))
        assert not path.parts[0].endswith((".", " "))
    assert len({str(path).lower() for path in found}) == len(names)
    write(x=HEADER)
    for name in names:
        text = registry.client.version(name, "latest").text
        Path("schemas/x.avsc").write_text(text)
        arguments = ("--against", "deep/all", "--subject", name, "--require-subject", "--lint", "naming=off")
        if name:
            assert run("compat", "check", "schemas/x.avsc", *arguments)[0] == 0, name


def test_downloaded_files_name_their_subjects_again(registry: ServedRegistry, run: Run) -> None:
    url = ("--registry-url", registry.url)
    names = ("a/b", "50%", "Orders", "orders", ".x ", "NUL", ":.eu:a b", "ü" * 100, "x" * 400, "/" * 300, "z")
    for number, name in enumerate(names):
        registry.client.register(name, ORDER.replace("Order", f"R{number}") % ("long", ""))
    code, out, err = run("schema", "download", "*", ":*", "--to", "all", *url, "--format", "json")
    assert (code, err) == (0, "")
    assert {row["subject"] for row in json.loads(out)["schemas"]} == set(names)
    by_name = ("all", "--subject-strategy", "file")
    code, out, err = run("schema", "register", *by_name, *url, "--format", "json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["schemas"]
    assert {(row["subject"], row["action"]) for row in rows} == {(name, "unchanged") for name in names}
    assert run("schema", "lock", *by_name, *url)[0] == 0
    assert run("schema", "lock", *by_name, *url, "--check")[0] == 0
    assert run("compat", "check", *by_name, "--against-registry", registry.url, "--require-subject")[0] == 0
    assert run("compat", "check", *by_name, "--against", "all", "--require-subject")[0] == 0
    for row in rows:
        text = Path(row["file"]).read_text()
        Path(row["file"]).write_text(text.replace('"long"', '"string"'))
    code, out, _ = run("compat", "check", *by_name, "--against-registry", registry.url, "--format", "json")
    assert code == 1
    assert {report["subject"]: report["compatible"] for report in json.loads(out)["reports"]} == dict.fromkeys(
        names, False
    )


@pytest.mark.parametrize("every", [(), ("--all-versions",)])
def test_download_continues_after_a_subject_without_a_file(
    registry: ServedRegistry, run: Run, every: tuple[str, ...]
) -> None:
    for name in ("J", "b", "c", "d"):
        registry.client.register(name, HEADER)
    Path("all").mkdir()
    for existing in ("j", "j.avsc", "%4a", "%4a.avsc"):
        Path("all", existing).write_text("")
    entity = {"subject": "b", "version": 1, "id": 7, "schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'}

    def respond(request: Request) -> Response | None:
        if request.path.startswith("/subjects/b/versions/"):
            return Response(json.dumps(entity))
        if request.path.startswith("/subjects/c/versions"):
            return Response('{"error_code":40401,"message":"not found"}', 404)
        return None

    registry.respond = respond
    arguments = ("schema", "download", "--to", "all", *every, "--registry-url", registry.url)
    code, out, _ = run(*arguments, "--format", "json")
    assert code == 2
    assert [row["subject"] for row in json.loads(out)["schemas"]] == ["d"]
    skipped = {row["subject"]: row["reason"] for row in json.loads(out)["skipped"]}
    assert list(skipped) == ["J", "b", "c"]
    assert "PROTOBUF" in skipped["b"]
    code, out, err = run(*arguments)
    assert (code, out.count("NOT DOWNLOADED: "), err.count("\n")) == (2, 3, 1)


@pytest.mark.parametrize(("subject", "is_shown"), [("orders-value", False), ("a/b-key", False), ("shop.Order", True)])
def test_download_names_the_strategy_that_gives_the_subjects_again(
    registry: ServedRegistry, run: Run, subject: str, is_shown: bool
) -> None:
    registry.client.register(subject, HEADER)
    _, out, _ = run("schema", "download", "--to", "all", "--registry-url", registry.url)
    assert ("--subject-strategy file" in out) == is_shown


def test_text_with_half_a_surrogate_pair_is_downloaded(registry: ServedRegistry, run: Run) -> None:
    text = HEADER.replace('"name": "Header"', '"name": "Header", "doc": "\\ud800"')
    entity = {"subject": "b", "version": 1, "id": 7, "schema": text}
    registry.client.register("b", HEADER)
    registry.respond = lambda request: (
        Response(json.dumps(entity)) if request.path.startswith("/subjects/b/versions/") else None
    )
    assert run("schema", "download", "--to", "all", "--registry-url", registry.url)[0] == 0
    assert json.loads(Path("all/b.avsc").read_text()) == json.loads(text)


def test_versions_with_comments_are_compared(registry: ServedRegistry, run: Run) -> None:
    registry.client.register("orders-value", ORDER % ("long", ""))
    write(orders=ORDER % ("int", ""))
    entity = {"subject": "orders-value", "version": 1, "id": 7, "schema": "/* as sent */ " + ORDER % ("long", "")}
    registry.respond = lambda request: (
        Response(json.dumps(entity)) if request.path.startswith("/subjects/orders-value/versions/") else None
    )
    code, out, err = run("compat", "check", "schemas", "--against-registry", registry.url)
    assert (code, err) == (1, "")
    assert "orders-value version 1" in out


def test_links_to_a_shared_file_are_registered_once(registry: ServedRegistry, run: Run) -> None:
    for name in ("one", "two"):
        Path(name).mkdir()
        Path(name, "header.avsc").symlink_to("../shared/header.avsc")
    Path("linked").symlink_to("shared")
    Path("shared").mkdir()
    Path("shared/header.avsc").write_text(HEADER)
    Path("one/pay.avsc").write_text(PAY)
    Path("two/refund.avsc").write_text(PAY.replace("Pay", "Refund"))
    url = ("--registry-url", registry.url)
    for command in ("register", "lock"):
        code, _, err = run("schema", command, "one", "two", "shared", "linked", *url)
        assert (code, err) == (0, "")
    assert registry.client.subjects() == ["header-value", "pay-value", "refund-value"]
    assert registry.client.versions("header-value") == [1]
    assert run("schema", "lock", "one", "two", "shared", "linked", *url, "--check")[0] == 0
    Path("two/header.avsc").unlink()
    Path("two/header.avsc").write_text(HEADER.replace("long", "int"))
    assert run("schema", "register", "one", "two", *url)[0] == 2, "two schemas of one subject"


def test_referenced_schema_is_downloaded_from_its_context(registry: ServedRegistry, run: Run) -> None:
    registry.client.register("header", HEADER.replace("Header", "Other"))
    registry.client.register(":.eu:header", HEADER)
    reference = SchemaReference("shop.Header", "header", 1)
    registry.client.register(":.eu:pay", PAY, [reference])
    assert run("schema", "download", ":.eu:pay", "--to", "eu", "--registry-url", registry.url)[0] == 0
    assert sorted(path.name for path in Path("eu").iterdir()) == ["%3A.eu%3Aheader.avsc", "%3A.eu%3Apay.avsc"]


def test_unknown_policy_does_not_pass(registry: ServedRegistry, run: Run) -> None:
    registry.client.register("orders-value", ORDER % ("long", ""))
    write(orders=ORDER % ("long", ""))
    config = json.dumps({"compatibilityLevel": "BACKWARD", "compatibilityPolicy": "COSMIC"})
    registry.respond = lambda request: Response(config) if request.path.startswith("/config/") else None
    code, out, err = run("compat", "check", "schemas", "--against-registry", registry.url)
    assert (code, out) == (2, "")
    assert re.search("compatibilityPolicy.*orders-value.*COSMIC", err)


def test_check_reports_the_configuration_of_a_subject(registry: ServedRegistry, run: Run) -> None:
    client = registry.client
    dated = ORDER % ('int", "logicalType": "date', "")
    dated = dated.replace('"type": "int", "logicalType": "date"', '"type": {"type": "int", "logicalType": "date"}')
    client.register("orders-value", dated, metadata={"confluent:reserved": "id"})
    client.set_config({"alias": "orders-value"}, "bestellungen-value")
    client.set_config({"compatibilityPolicy": "LOGICAL", "validateFields": True}, "orders-value")
    write(bestellungen=ORDER % ("int", ""))
    code, out, _ = run("compat", "check", "schemas", "--against-registry", registry.url)
    assert code == 1
    assert "rule: LOGICAL_POLICY (backward)\n" in out and "/fields/0/type" in out
    assert "rule: RESERVED_FIELD" in out
    assert re.search("note: bestellungen-value .*orders-value\n", out)
