"""`headrace compat check --against git:…` in sample repositories."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.cli import main
from headrace.compat.checking.git import GitFailed, GitRepository
from support.golden import golden

ORDER = '{"type": "record", "name": "Order", "namespace": "shop", "fields": [\n  {"name": "id", "type": "%s"}%s\n]}\n'
NOTE = ',\n  {"name": "note", "type": "string"}'
USES_HEADER = '{"type": "record", "name": "Pay", "namespace": "shop", "fields": [{"name": "header", "type": "Header"}]}'
HEADER = '{"type": "record", "name": "Header", "namespace": "shop", "fields": [{"name": "time", "type": "%s"}]}'

RECORD_OF = '{"type": "record", "name": "T", "fields": [{"name": "t", "type": %s}]}'

Check = Callable[..., tuple[int, str, str]]


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def commit(message: str, **files: str | None) -> None:
    """Writes files (`a__b` is a/b.avsc), deletes those that are None, and commits."""
    for name, text in files.items():
        path = Path(f"{name.replace('__', '/')}.avsc")
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            git("rm", "-q", str(path))
        else:
            path.write_text(text)
    git("add", ".")
    git("commit", "-q", "--allow-empty", "-m", message)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    directory = tmp_path / "repo"
    directory.mkdir()
    monkeypatch.chdir(directory)
    git("init", "-q", "-b", "main", ".")
    git("config", "user.email", "a@example.com")
    git("config", "user.name", "a")
    commit(
        "first", schemas__order=ORDER % ("long", ""), schemas__shop__header=HEADER % "long", schemas__pay=USES_HEADER
    )
    return directory


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Check:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(["compat", "check", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def reports(out: str) -> dict[str, dict[str, object]]:
    return {report["file"]: report for report in json.loads(out)["reports"]}


def test_a_clean_working_tree_is_compatible(repository: Path, check: Check) -> None:
    code, out, err = check("schemas", "--against", "git:main")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].startswith("3 schemas ")


def test_changed_file_and_its_users_are_incompatible(repository: Path, check: Check) -> None:
    Path("schemas/shop/header.avsc").write_text(HEADER % "string")
    code, out, _ = check("schemas", "--against", "git:HEAD", "--format", "json")
    assert code == 1
    assert {file for file, report in reports(out).items() if not report["compatible"]} == {
        "schemas/pay.avsc",
        "schemas/shop/header.avsc",
    }


def test_revision_uses_its_own_types(repository: Path, check: Check) -> None:
    """Checks only the user of a type; its earlier definition is read from the revision, not from the working tree."""
    Path("schemas/shop/header.avsc").write_text(HEADER % "string")
    code, out, _ = check("schemas/pay.avsc", "--types", "schemas", "--against", "git:main")
    assert code == 1
    assert "main:schemas/pay.avsc" in out
    assert re.search(r"header\.time.* string .* long ", out)


def test_since_selects_changed_files_and_their_users(repository: Path, check: Check) -> None:
    git("checkout", "-q", "-b", "feature")
    code, out, _ = check("schemas", "--against", "git:main", "--since", "main", "--format", "json")
    assert (code, reports(out)) == (0, {})
    Path("schemas/shop/header.avsc").write_text(HEADER % "double")
    Path("schemas/brand-new.avsc").write_text('"int"')
    code, out, _ = check("schemas", "--against", "git:main", "--since", "main", "--format", "json")
    assert set(reports(out)) == {"schemas/pay.avsc", "schemas/shop/header.avsc", "schemas/brand-new.avsc"}
    git("checkout", "-q", "main")
    commit("main moves on", schemas__order=ORDER % ("string", ""))
    git("checkout", "-q", "feature")
    code, out, _ = check("schemas", "--against", "git:main", "--since", "main", "--format", "json")
    assert "schemas/order.avsc" not in reports(out), "changes of main are not reported"


def test_branch_means_merge_base_but_tip_and_tag_their_commit(repository: Path, check: Check) -> None:
    git("checkout", "-q", "-b", "side")
    git("checkout", "-q", "main")
    more = ', {"name": "more", "type": "int", "default": 0}'
    commit("wider", schemas__order=ORDER % ("float", more), schemas__new=HEADER % "int")
    git("tag", "released")
    git("checkout", "-q", "side")
    base = git("rev-parse", "main~1")[:10]
    for arguments in (["git:main"], ["git:main:schemas"], [f"git:{git('rev-parse', 'main').strip()}"]):
        code, out, _ = check("schemas", "--against", *arguments, "--verbose")
        assert (code, f"{base}:schemas/order.avsc" in out) == (0, True), "nothing was changed here"
    for tip in ("git-tip:main", "git-tip:main:schemas", "git:released"):
        code, out, _ = check("schemas", "--against", tip)
        assert (code, "float" in out) == (1, True), tip
    Path("schemas/order.avsc").write_text(ORDER % ("string", ""))
    code, out, _ = check("schemas", "--against", "git:main")
    assert (code, f"{base}:schemas/order.avsc" in out) == (1, True)


def test_shallow_clone_without_merge_base_uses_the_tip(
    repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("checkout", "-q", "-b", "side")
    commit("side", schemas__order=ORDER % ("string", ""))
    git("clone", "-q", "--depth", "1", "--no-single-branch", f"file://{repository}", str(repository.parent / "clone"))
    monkeypatch.chdir(repository.parent / "clone")
    code, out, _ = check("schemas", "--against", "git:origin/main")
    assert (code, "origin/main:schemas/order.avsc" in out) == (1, True)


def test_since_selects_users_of_deleted_types(repository: Path, check: Check) -> None:
    Path("schemas/shop/header.avsc").unlink()
    code, out, err = check("schemas", "--against", "git:main", "--since", "main")
    assert (code, deletions(out), "schemas/shop/header.avsc: " in out) == (3, 1, True)
    assert re.match(r"schemas/pay\.avsc:1:94: .*shop\.Header", err)


USER = '{"type": "record", "name": "User", "namespace": "n", "fields": [{"name": "addr", "type": "Addr"}]}\n'
ADDR = '{"type": "record", "name": "Addr", "namespace": "n", "fields": [{"name": "zip", "type": "%s"}]}\n'
STREET = ADDR.replace("Addr", "Street")
ADDR_OF_STREET = ADDR.replace('"%s"', '"Street"')


def _change_type(repository: Path) -> None:
    Path("dep/addr.avsc").write_text(ADDR % "string")


def _change_indirectly_used_type(repository: Path) -> None:
    Path("dep/street.avsc").write_text(STREET % "string")


def _add_nearer_type(repository: Path) -> None:
    Path("u/near.avsc").write_text(ADDR % "string")


def _delete_type(repository: Path) -> None:
    """A definition further away, which has not changed, then takes the place of the deleted one."""
    Path("dep/addr.avsc").unlink()


def _rename_type(repository: Path) -> None:
    Path("dep/addr.avsc").rename("dep/address.avsc")
    Path("dep/address.avsc").write_text(ADDR % "string")


def _move_type_out_of_file(repository: Path) -> None:
    Path("dep/addr.avsc").write_text(ADDR.replace("Addr", "Other") % "string")


def _link_type_to_another_file(repository: Path) -> None:
    Path("dep/addr.avsc").unlink()
    Path("dep/addr.avsc").symlink_to("../far/away/addr.avsc")


@pytest.mark.parametrize("selection", ["directory", "types", "settings", "subdirectory"])
@pytest.mark.parametrize(
    "change",
    [
        _change_type,
        _change_indirectly_used_type,
        _add_nearer_type,
        _delete_type,
        _rename_type,
        _move_type_out_of_file,
        _link_type_to_another_file,
    ],
)
def test_since_selects_users_of_changed_types_in_unselected_files(
    repository: Path,
    check: Check,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    selection: str,
) -> None:
    is_indirect = change is _change_indirectly_used_type
    addr = ADDR_OF_STREET if is_indirect else ADDR % "long"
    commit("types", u__user=USER, dep__addr=addr, dep__street=STREET % "long", far__away__addr=ADDR % "string")
    commit("other", u__other=ORDER % ("long", ""))
    git("checkout", "-q", "-b", "feature")
    change(repository)
    arguments = {"directory": ["u"], "types": ["u", "--types", "dep"], "settings": []}.get(selection, ["."])
    if selection == "settings":
        Path("headrace.toml").write_text('[compat]\nschemas = ["u"]\n')
    if selection == "subdirectory":
        git("config", "diff.relative", "true")
        monkeypatch.chdir("u")
        arguments += ["--types", "../dep", "../far"]
    code, out, err = check(*arguments, "--against", "git:main", "--since", "main", "--format", "json")
    found = {file.rpartition("/")[2]: report["compatible"] for file, report in reports(out).items()}
    expected = {"user.avsc": False} | ({"near.avsc": True} if change is _add_nearer_type else {})
    assert (code, found, err) == (1, expected, "")


@pytest.mark.parametrize("since", [(), ("--since", "main")])
@pytest.mark.parametrize("name", ["addr.avsc", "addr.json", "addr.schema"])
def test_revision_prefers_the_types_that_the_command_line_names(
    repository: Path, check: Check, since: tuple[str, ...], name: str
) -> None:
    Path("dep").mkdir()
    Path("dep", name).write_text(ADDR % "long")
    commit("types", u__user=USER, u__below__addr=ADDR % "string")
    Path("dep", name).write_text(ADDR % "string")
    types = f"dep/{name}" if name == "addr.schema" else "dep"
    code, out, err = check("u", "--types", types, "--against", "git:main", *since, "--format", "json")
    assert (code, err) == (1, "")
    assert not reports(out)["u/user.avsc"]["compatible"]


def test_since_reports_a_type_that_became_ambiguous(repository: Path, check: Check) -> None:
    commit("types", u__user=USER, dep__addr=ADDR % "long")
    Path("dep/other.avsc").write_text(ADDR % "string")
    code, out, err = check("u", "--against", "git:main", "--since", "main")
    assert (code, out, "n.Addr" in err) == (3, "", True)


def test_since_selects_files_whose_changes_git_does_not_know(repository: Path, check: Check) -> None:
    """Types of generated files, which git ignores, and of files outside of the repository may have changed."""
    Path(".gitignore").write_text("generated/\n")
    Path("generated").mkdir()
    Path("generated/addr.avsc").write_text(ADDR % "long")
    Path("../outside").mkdir()
    Path("../outside/street.avsc").write_text(STREET % "long")
    street = USER.replace("User", "Road").replace("Addr", "Street")
    commit("types", u__user=USER, v__road=street, w__order=ORDER % ("long", ""))
    arguments = ("u", "v", "w", "--types", "../outside", "generated", "--since", "main", "--format", "json")
    assert set(reports(check(*arguments, "--against", "u/user.avsc")[1])) == {"u/user.avsc", "v/road.avsc"}


def test_since_selects_users_of_types_below_a_changed_link(repository: Path, check: Check) -> None:
    commit("versions", types__v1__addr=ADDR % "long", types__v2__addr=ADDR % "string", u__user=USER)
    Path("latest").symlink_to("types/v1")
    commit("link")
    arguments = ("u", "--types", "latest", "--against", "u/user.avsc", "--since", "main", "--format", "json")
    assert reports(check(*arguments)[1]) == {}
    Path("latest").unlink()
    Path("latest").symlink_to("types/v2")
    assert set(reports(check(*arguments)[1])) == {"u/user.avsc"}


def test_types_do_not_depend_on_other_named_files(repository: Path, check: Check) -> None:
    """Files named together, as by a tool that splits a long list, do not change which types a file uses."""
    for place, kind in (("a", "long"), ("b", "string")):
        commit(place, **{f"{place}__common__header": HEADER % kind, f"{place}__shop__orders__pay": USES_HEADER})
    Path("b/common/header.avsc").write_text(HEADER % "bytes")
    Path("a/common/header.avsc").write_text(HEADER % "float")
    code, out, err = check("a/shop/orders/pay.avsc", "b/common/header.avsc", "--against", "git:HEAD", "--format=json")
    assert (code, err) == (0, "")
    assert check("./a/shop/orders/pay.avsc", "--against", "git:HEAD", "--quiet")[:2] == (0, "")
    assert check(str(Path("a/shop/orders/pay.avsc").absolute()), "--against", "git:HEAD")[::2] == (0, "")
    Path("a/common/header.avsc").write_text(HEADER % "string")
    for company in ([], ["b/common/header.avsc"], ["a/common/header.avsc", "b/shop/orders/pay.avsc"]):
        code, out, _ = check("a/shop/orders/pay.avsc", *company, "--against", "git:HEAD", "--format=json")
        assert not reports(out)["a/shop/orders/pay.avsc"]["compatible"]
    (finding,) = reports(out)["a/shop/orders/pay.avsc"]["findings"]  # type: ignore[misc]
    assert finding["rule"] == "TYPE_MISMATCH"
    assert "HEAD:a/shop" in finding["sentence"]
    commit("both", a__shop__orders__pay=USES_HEADER.replace("[{", '[{"name": "n", "type": "null"}, {'))
    code, _, err = check("a/shop/orders/pay.avsc", "--against", "git:HEAD", "--level", "FULL_TRANSITIVE")
    assert (code, err) == (1, ""), "older versions also use the types of their own directories"


def test_all_files_are_new_before_first_commit(repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q", "-b", "main", "../fresh")
    monkeypatch.chdir("../fresh")
    Path("a.avsc").write_text('"int"')
    for flags in ([], ["--since", "HEAD"], ["--level", "FULL_TRANSITIVE"]):
        code, out, err = check(".", "--against", "git:HEAD", *flags, "--format", "json")
        assert (code, err, reports(out)["a.avsc"]["new"]) == (0, "", True)
    assert check(".", "--against", "git:main")[0] == 2


@pytest.mark.parametrize("is_staged", [True, False])
def test_renames_are_followed(repository: Path, check: Check, is_staged: bool) -> None:
    Path("schemas/orders").mkdir()
    if is_staged:
        git("mv", "schemas/order.avsc", "schemas/orders/v.avsc")
    else:
        Path("schemas/order.avsc").rename("schemas/orders/v.avsc")
    Path("schemas/orders/v.avsc").write_text(ORDER % ("long", NOTE))
    code, out, _ = check("schemas/orders/v.avsc", "--against", "git:main", "--require-subject")
    assert code == 1
    assert re.search(r"note.* main:schemas/order\.avsc", out)
    assert re.search(r"schemas/order\.avsc .*\bmain$", out.rstrip())


def test_transitive_levels_use_file_history(repository: Path, check: Check) -> None:
    commit("widen", schemas__order=ORDER % ("float", ""))
    commit("renamed", schemas__order=None, schemas__bestellung=ORDER % ("float", ""))
    git("checkout", "-q", "-b", "side")
    commit("side", schemas__bestellung=ORDER % ("string", ""))
    commit("side again", schemas__bestellung=ORDER % ("double", ""))
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    arguments = ("schemas/bestellung.avsc", "--against", "git:main", "--format", "json", "--all-versions")
    code, out, _ = check(*arguments)
    assert code == 0
    report = reports(out)["schemas/bestellung.avsc"]
    assert report["level"] == "BACKWARD_TRANSITIVE"
    names = [version["name"] for version in report["compared"]]  # type: ignore[attr-defined]
    assert names[0] == "main:schemas/bestellung.avsc"
    assert [name.partition(":")[2] for name in names[1:]] == ["schemas/bestellung.avsc", "schemas/order.avsc"]
    Path("schemas/bestellung.avsc").write_text(ORDER % ("int", ""))
    code, out, _ = check(*arguments)
    assert code == 1
    assert len(reports(out)["schemas/bestellung.avsc"]["findings"]) == 3  # type: ignore[arg-type]


COUNTRY = ', {"name": "country", "type": "string"%s}]'
DEFAULT = ', "default": "NZ"'
ADDR_1 = ADDR % "long"
ADDR_2 = ADDR_1.replace("]", COUNTRY % DEFAULT)
ADDR_3 = ADDR_1.replace("]", COUNTRY % "")
"""Reads data of ADDR_2, but not of ADDR_1."""


def test_transitive_levels_use_history_of_types_in_other_files(repository: Path, check: Check) -> None:
    commit("one", u__user=USER, dep__addr=ADDR_1)
    commit("two", dep__addr=ADDR_2)
    commit("unrelated", schemas__order=ORDER % ("long", NOTE))
    Path("dep/addr.avsc").write_text(ADDR_3)
    arguments = ("u", "--against", "git:main", "--format", "json")
    assert check(*arguments)[0] == 0
    code, out, err = check(*arguments, "--level", "BACKWARD_TRANSITIVE")
    assert (code, err) == (1, "")
    report = reports(out)["u/user.avsc"]
    assert report["known_versions"] == 2
    assert {finding["version"] for finding in report["findings"]} == {1}  # type: ignore[attr-defined]
    first = git("rev-list", "--reverse", "HEAD").split()[1]
    assert report["compared"][1]["name"] == f"{first[:10]}:u/user.avsc"  # type: ignore[index]


def _move_type(repository: Path) -> None:
    commit("moved", dep__addr=None, lib__address=ADDR_1)
    commit("two", lib__address=ADDR_2)
    Path("lib/address.avsc").write_text(ADDR_3)


def _replace_type_by_one_further_away(repository: Path) -> None:
    commit("two", dep__addr=None)
    Path("lib/far/addr.avsc").write_text(ADDR_3)


def _use_type_of_another_file(repository: Path) -> None:
    commit("two", dep__addr=ADDR.replace("Addr", "Other") % "long", u__user=USER + "\n", dep__near=ADDR_2)
    Path("dep/near.avsc").write_text(ADDR_3)


def _include_type(repository: Path) -> None:
    commit("two", u__user=USER.replace('"Addr"', ADDR_2.strip()))
    Path("u/user.avsc").write_text(USER.replace('"Addr"', ADDR_3.strip()))


def _rename_user(repository: Path) -> None:
    Path("u/user.avsc").rename("u/person.avsc")
    commit("renamed", dep__addr=ADDR_2)
    Path("dep/addr.avsc").write_text(ADDR_3)


@pytest.mark.parametrize(
    "change",
    [_move_type, _replace_type_by_one_further_away, _use_type_of_another_file, _include_type, _rename_user],
)
def test_earlier_versions_use_the_types_of_their_own_commits(
    repository: Path, check: Check, change: Callable[[Path], None]
) -> None:
    commit("one", u__user=USER, dep__addr=ADDR_1, lib__far__addr=ADDR_2)
    change(repository)
    assert check("u", "--against", "git:main")[::2] == (0, "")
    code, out, err = check("u", "--against", "git:main", "--level", "BACKWARD_TRANSITIVE", "--format", "json")
    assert (code, err) == (1, "")
    (report,) = reports(out).values()
    assert {finding["version"] for finding in report["findings"]} == {1}  # type: ignore[attr-defined]
    assert report["known_versions"] == 2


def test_transitive_levels_accept_links_and_merges(repository: Path, check: Check) -> None:
    commit("one", u__user=USER, dep__addr=ADDR_1)
    Path("u/link.avsc").symlink_to("user.avsc")
    commit("link")
    git("checkout", "-q", "-b", "side")
    commit("two", dep__addr=ADDR_2)
    git("checkout", "-q", "main")
    git("merge", "-q", "--no-ff", "-m", "merge", "side")
    Path("dep/addr.avsc").write_text(ADDR_3)
    code, out, err = check("u", "--against", "git:main", "--level", "BACKWARD_TRANSITIVE", "--format", "json")
    assert (code, err) == (1, "")
    assert [report["known_versions"] for report in reports(out).values()] == [2, 2]


def test_path_in_the_revision(repository: Path, check: Check) -> None:
    Path("other").mkdir()
    Path("other/order.avsc").write_text(ORDER % ("long", NOTE))
    for place in ("schemas", "schemas/order.avsc"):
        code, out, _ = check("other", "--against", f"git:main:{place}")
        assert code == 1
        assert "main:schemas/order.avsc" in out
    code, _, err = check("other", "--against", "git:main:elsewhere")
    assert (code, err.count("\n"), "'elsewhere'" in err) == (2, 1, True)


def test_check_from_subdirectory_and_standard_input(
    repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository / "schemas" / "shop")
    assert check("header.avsc", "../order.avsc", "--against", "git:main")[0] == 0
    read, write = os.pipe()
    os.write(write, (HEADER % "string").encode())
    os.close(write)
    with os.fdopen(read) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        code, out, _ = check("-", "--stdin-name", "header.avsc", "--against", "git:main")
    assert code == 1
    assert out.startswith("header.avsc:1:95: error: ")


def test_skip_invalid_skips_invalid_earlier_version(repository: Path, check: Check) -> None:
    commit("broken", schemas__order='{"type": "record", "name": }')
    Path("schemas/order.avsc").write_text(ORDER % ("long", ""))
    code, _, err = check("schemas/order.avsc", "--against", "git:main")
    assert code == 3
    assert err.startswith("main:schemas/order.avsc:1:28: ")
    code, out, _ = check("schemas/order.avsc", "--against", "git:main", "--skip-invalid")
    assert code == 0
    assert "main:schemas/order.avsc" in out
    assert check("schemas/order.avsc", "--against", "git:main", "--skip-invalid", "--require-subject")[0] == 1
    code, out, _ = check("schemas/order.avsc", "--against", "git:main", "--level", "none", "--require-subject")
    assert (code, out.count("\n"), "NONE" in out) == (0, 1, True)


def test_error_names_a_revision_that_does_not_exist(repository: Path, check: Check) -> None:
    for revision in ("nowhere", "", "--output=x"):
        code, _, err = check("schemas", "--against", f"git:{revision}")
        assert (code, err.count("\n")) == (2, 1)
        assert err.startswith(f"git:{revision}: ")
        assert f"'{revision}'" in err
    assert not Path("x").exists()
    assert check("schemas", "--against", "git:main:")[0] == 0


def test_error_of_a_missing_file_suggests_the_revision_of_its_name(repository: Path, check: Check) -> None:
    code, _, err = check("schemas", "--against", "main")
    assert (code, err.count("\n")) == (2, 1)
    assert re.match(r"main: .*No such file or directory.*\bgit:main\b", err)


def test_since_unknown_revision_is_an_error(repository: Path, check: Check) -> None:
    code, _, err = check("schemas", "--against", "git:main", "--since", "nowhere")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("--since nowhere: ")


def test_shallow_clone_error_suggests_fetch(repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    commit("second", schemas__order=ORDER % ("double", ""))
    git("clone", "-q", "--depth", "1", f"file://{repository}", str(repository.parent / "clone"))
    monkeypatch.chdir(repository.parent / "clone")
    code, _, err = check("schemas", "--against", "git:HEAD~1")
    assert code == 2
    assert "fetch-depth: 0" in err
    code, _, err = check("schemas", "--against", "git:origin/feature/x")
    assert (code, "git fetch origin +feature/x:refs/remotes/origin/feature/x" in err) == (2, True)
    code, out, _ = check("schemas/order.avsc", "--against", "git:HEAD", "--all-versions")
    assert code == 0
    assert re.search(r"^note: .*\bshallow\b", out, re.MULTILINE)


def test_errors_outside_repository_and_without_git(
    repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("../outside.avsc").write_text('"int"')
    code, _, err = check("../outside.avsc", "--against", "git:main")
    assert code == 2
    assert (err.count("\n"), "../outside.avsc " in err) == (1, True)
    with pytest.raises(GitFailed, match=re.escape(str(repository.parent))):
        GitRepository(repository.parent)
    monkeypatch.setenv("PATH", str(repository))
    code, _, err = check("schemas", "--against", "git:main")
    assert (code, err.count("\n"), "PATH" in err) == (2, 1, True)


def test_untrusted_repository_error_suggests_safe_directory(
    repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose user does not own the files."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.chdir(repository / "schemas")
    code, _, err = check(".", "--against", "git:main")
    assert (code, err.count("\n"), str(repository) in err) == (2, 1, True)
    assert err.endswith(f"git config --global --add safe.directory {repository}\n")  # of its top directory


def test_submodule_files_are_not_new(repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "-q", "../outer")
    monkeypatch.chdir("../outer")
    git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(repository), "inner")
    git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-q", "-m", "inner")
    code, out, _ = check("inner/schemas", "--against", "git:HEAD", "--since", "HEAD", "--format", "json")
    assert (code, reports(out)) == (0, {})
    Path("inner/schemas/order.avsc").write_text(ORDER % ("string", ""))
    for flags in ([], ["--since", "HEAD"]):
        code, out, err = check("inner/schemas", "--against", "git:HEAD", *flags)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert re.match(r"git:HEAD: .*inner/schemas/order\.avsc .*\binner\b", err)
    monkeypatch.chdir("inner")
    assert check("schemas", "--against", "git:HEAD")[0] == 1


def test_symbolic_links_are_resolved(repository: Path, check: Check) -> None:
    """A link may have changed its target; the contents of both targets are compared."""
    for name, target in (("latest", "order.avsc"), ("again", "latest.avsc"), ("broken", "nowhere"), ("new", "x.avsc")):
        Path(f"schemas/{name}.avsc").symlink_to(target)
    Path("schemas/new.avsc").write_text('"int"')
    commit("links")
    Path("schemas/broken.avsc").unlink()
    assert check("schemas", "--against", "git:HEAD")[::2] == (0, "")
    Path("schemas/order2.avsc").write_text(ORDER % ("long", NOTE))
    Path("schemas/latest.avsc").unlink()
    Path("schemas/latest.avsc").symlink_to("order2.avsc")
    out = check("schemas", "--against", "git:HEAD", "--format", "json")[1]
    assert {file for file, report in reports(out).items() if not report["compatible"]} == {
        "schemas/again.avsc",
        "schemas/latest.avsc",
    }
    Path("schemas/order.avsc").write_text(ORDER % ("string", ""))
    out = check("schemas/x.avsc", "schemas/again.avsc", "--against", "git:HEAD", "--since", "HEAD", "--format=json")[1]
    assert [(file, row["compatible"]) for file, row in reports(out).items()] == [("schemas/again.avsc", False)]


def test_json_files_have_history(repository: Path, check: Check) -> None:
    Path("schemas/kept.json").write_text(ORDER % ("int", ""))
    Path("schemas/uses.json").write_text(RECORD_OF % '"shop.InJson"')
    Path("schemas/UPPER.AVSC").write_text(ORDER % ("int", ""))
    Path("schemas/named.schema").write_text(ORDER % ("int", ""))
    Path("schemas/type.json").write_text(ORDER.replace("Order", "InJson") % ("int", ""))
    Path("schemas/data.json").write_text('{"type": "record", "name": "Order", "value": 1}')
    commit("first")
    changing = [Path("schemas") / name for name in ("kept.json", "UPPER.AVSC", "named.schema")]
    for path in changing:
        path.write_text(ORDER % ("long", ""))
    commit("wider")
    Path("schemas/kept.json").rename("schemas/moved.json")
    changing[0] = Path("schemas/moved.json")
    for path in changing:
        path.write_text(ORDER % ("int", ""))
    arguments = ("schemas", "schemas/named.schema", "--against", "git:main", "--format", "json")
    assert {file for file, row in reports(check(*arguments)[1]).items() if not row["compatible"]} == {
        str(path) for path in changing
    }
    code, out, err = check(*arguments, "--level", "FULL_TRANSITIVE")
    assert (code, err) == (1, "")
    for path in changing:
        assert reports(out)[str(path)]["known_versions"] == 2


def test_linked_directory_is_compared(repository: Path, check: Check) -> None:
    commit("shared", shared__order=ORDER % ("long", ""))
    Path("schemas/linked").symlink_to("../shared")
    commit("linked")
    Path("shared/order.avsc").write_text(ORDER % ("string", ""))
    for since in ((), ("--since", "main")):
        code, out, _ = check("schemas", "--against", "git:main", *since, "--format", "json")
        found = {file: row for file, row in reports(out).items() if not row["compatible"]}
        assert (code, list(found)) == (1, ["schemas/linked/order.avsc"])
        assert [row["name"] for row in found["schemas/linked/order.avsc"]["compared"]] == ["main:shared/order.avsc"]  # type: ignore[attr-defined]


def test_allow_comments_ignores_comments(repository: Path, check: Check, capsys: pytest.CaptureFixture[str]) -> None:
    licence = '/* Licensed to "nobody",\n   https://… */\n'
    header = HEADER.replace('"record"', '"record", "doc": "see http://a/*b*/"') % "long" + " // the end"
    commit("licensed", schemas__order=licence + ORDER % ("long", ""), schemas__shop__header=licence + header)
    code, _, err = check("schemas/order.avsc", "--against", "git:main")
    assert (code, err.count("\n")) == (3, 1)
    assert err.startswith("schemas/order.avsc:1:1: ")
    assert check("schemas", "--against", "git:main", "--allow-comments")[::2] == (0, "")
    Path("headrace.toml").write_text("[compat]\nallow_comments = true\n")
    Path("schemas/order.avsc").write_text(licence + ORDER % ("string", ""))
    for baseline in ("git:main", "released", "released/order.avsc"):
        Path("released").mkdir(exist_ok=True)
        Path("released/order.avsc").write_text(licence + ORDER % ("long", ""))
        code, out, _ = check("schemas/order.avsc", "schemas/pay.avsc", "--against", baseline)
        assert code == 1
        assert out.startswith("schemas/order.avsc:4:26: error: ")
    assert main(["schema", "validate", "schemas"]) == 0
    capsys.readouterr()
    Path("schemas/order.avsc").write_text("/* not ended " + ORDER % ("long", ""))
    assert check("schemas/order.avsc", "--against", "git:main")[0] == 3


def test_git_mode_contacts_no_registry(repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings name a registry, but no socket may be opened."""

    def refuse(*_: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket", refuse)
    monkeypatch.setenv("HEADRACE__REGISTRY__URL", "http://registry.invalid:8081")
    assert check("schemas", "--against", "git:main")[0] == 0
    assert check("schemas", "--against", "schemas")[0] == 0
    assert check("schemas/order.avsc", "--against", "schemas/order.avsc")[0] == 0


def test_settings_file_configures_the_check(repository: Path, check: Check) -> None:
    Path("headrace.toml").write_text(
        '[compat]\nschemas = ["schemas"]\nagainst = ["git:main"]\nlevel = "FULL"\n'
        '[compat.subjects]\n"schemas/order.avsc" = "orders-{name}"\n'
        '[[compat.suppressions]]\nrule = "TYPE_MISMATCH"\npath = "schemas/order.avsc"\nreason = "agreed"\n'
        "expires = 2999-01-01\n"
    )
    Path("schemas/order.avsc").write_text(ORDER % ("double", ""))
    code, out, _ = check("--format", "json")
    report = reports(out)["schemas/order.avsc"]
    assert (code, report["subject"], report["level"]) == (0, "orders-Order", "FULL")
    assert report["findings"][0]["suppressed"]["reason"] == "agreed (until 2999-01-01)"  # type: ignore[index]
    Path("headrace.toml").write_text('[compat]\nsuppressions = [{rule = "X"}]\n')
    code, _, err = check("schemas", "--against", "git:main")
    assert (code, err.count("\n")) == (2, 1)
    assert re.match(r"headrace: suppression 1 of compat\.suppressions: .*\breason\b", err)


def test_unused_suppression_is_reported_only_in_full_check(repository: Path, check: Check) -> None:
    """A hook names only changed files, but the settings cover all files."""
    Path("headrace.toml").write_text('[[compat.suppressions]]\npath = "schemas/pay.avsc"\nreason = "agreed"\n')

    def notes(*arguments: str) -> list[str]:
        return list(json.loads(check(*arguments, "--against", "git:main", "--format", "json")[1])["notes"])

    (unused,) = notes("schemas")
    assert "schemas/pay.avsc" in unused
    assert notes("schemas/order.avsc") == []
    assert notes("schemas", "--since", "main") == []
    Path("schemas/pay.avsc").write_text(ORDER % ("long", ""))
    assert check("schemas/pay.avsc", "--against", "git:main")[0] == 0, "the suppression applies"
    absolute = str(Path("schemas").absolute())
    assert check(absolute, "--against", "git:main")[0] == 0, "files are identified relative to the working directory"


def test_baseline_file_accepts_known_findings(repository: Path, check: Check) -> None:
    Path("schemas/order.avsc").write_text(ORDER % ("long", NOTE))
    arguments = ("schemas", "--against", "git:main")
    assert check(*arguments)[0] == 1
    assert check(*arguments, "--exit-zero")[0] == 0
    code, out, _ = check(*arguments, "--write-baseline", "known.json")
    assert (code, "--baseline known.json" in out.splitlines()[-1]) == (0, True)
    code, out, _ = check(*arguments, "--baseline", "known.json")
    assert code == 0
    assert "main:schemas/order.avsc (1 suppressed)" in out
    Path("schemas/order.avsc").write_text(ORDER % ("long", NOTE + NOTE.replace("note", "more")))
    assert check(*arguments, "--baseline", "known.json")[0] == 1
    assert check(*arguments, "--baseline", "missing.json")[0] == 2


def test_write_baseline_fails_for_a_subject_that_the_file_lacks(repository: Path, check: Check) -> None:
    Path("schemas/order.avsc").write_text(ORDER % ("long", NOTE))
    Path("schemas/new.avsc").write_text(ORDER % ("long", ""))
    arguments = ("schemas", "--against", "git:main", "--require-subject")
    code, out, err = check(*arguments, "--write-baseline", "known.json")
    assert (code, "1 known finding " in out) == (1, True)
    assert err.startswith("schemas/new.avsc: error: ")
    assert check(*arguments, "--baseline", "known.json")[0] == 1


def test_several_outputs_at_once(repository: Path, check: Check) -> None:
    Path("schemas/order.avsc").write_text(ORDER % ("long", NOTE))
    outputs = [f"--output={name}=out/{name}.txt" for name in ("json", "junit", "sarif", "gitlab", "markdown", "github")]
    code, out, _ = check("schemas", "--against", "git:main", *outputs)
    assert code == 1
    assert "schemas/order.avsc:3:3: error:" in out
    assert len(list(Path("out").iterdir())) == 6
    assert all("note" in path.read_text() for path in Path("out").iterdir())
    code, _, err = check("schemas", "--against", "git:main", "--output", "pdf=x")
    assert (code, err.count("\n")) == (2, 1)
    assert re.match(r"headrace: --output: .*text, json, junit, sarif, github, gitlab, markdown.*'pdf=x'", err)
    code, _, err = check("schemas", "--against", "git:main", "--output", "json=schemas/order.avsc/x")
    assert (code, err.count("\n")) == (2, 1)


def test_annotations_use_repository_relative_paths(
    repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a repository of several services, the check runs in the directory with its settings."""
    monkeypatch.chdir("schemas")
    Path("order.avsc").write_text(ORDER % ("long", NOTE))
    Path("broken.avsc").write_text("{")
    code, out, err = check(
        ".", "../schemas/shop", "--against", "git:main", "--output=sarif=../x.sarif", "--format=github"
    )
    assert (code, out.count("file=schemas/order.avsc,line=3"), out.count("file=schemas/broken.avsc,")) == (3, 1, 1)
    assert err.startswith("broken.avsc:1:2: error: "), "paths on standard error are relative to the working directory"
    (run,) = json.loads(Path("../x.sarif").read_text())["runs"]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "schemas/order.avsc"
    assert '"path": "git:nowhere"' in check(".", "--against", "git:nowhere", "--format", "gitlab")[1]
    assert '"file": "order.avsc"' in check("order.avsc", "--against", "git:main", "--format", "json")[1]


def test_diff_command(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("schemas/order.avsc").write_text(ORDER % ("long", NOTE.replace('"string"', '"string", "default": ""')))
    assert main(["compat", "diff", "schemas/order.avsc", "schemas/pay.avsc", "--against", "git:main"]) == 0
    out = capsys.readouterr().out
    assert out == golden("compat/diff.txt", out)


def test_lints_are_enabled_by_name(repository: Path, check: Check) -> None:
    arguments = ("schemas/order.avsc", "--against", "git:main")
    assert check(*arguments)[1].count("\n") == 1
    code, out, _ = check(*arguments, "--lint", "doc-missing")
    assert code == 0
    assert re.search(r"^schemas/order\.avsc:2:3: warning: .*\bid\b", out, re.MULTILINE)
    assert out.endswith("main:schemas/order.avsc (2 warnings)\n")
    code, out, _ = check(*arguments, "--lint", "doc-missing=error", "--format", "json")
    finding = reports(out)["schemas/order.avsc"]["findings"][0]  # type: ignore[index]
    assert (code, finding["rule"], finding["severity"], finding["direction"]) == (1, "DOC_MISSING", "error", None)
    Path("headrace.toml").write_text('[compat]\nlints = ["all", "naming=off"]\n')
    assert "DOC_MISSING" in check(*arguments)[1]
    assert "DOC_MISSING" not in check(*arguments, "--lint", "doc-missing=off")[1]
    code, _, err = check(*arguments, "--lint", "spelling")
    assert (code, err.count("\n")) == (2, 1)
    assert re.match(r"headrace: --lint: 'spelling' .*\ball, DOC_MISSING,", err)


def test_lints_compare_with_earlier_version(repository: Path, check: Check) -> None:
    time = '{"type": "long", "logicalType": "timestamp-%s"}'
    commit("time", schemas__t=RECORD_OF % (time % "millis"))
    Path("schemas/t.avsc").write_text(RECORD_OF % (time % "micros"))
    assert check("schemas/t.avsc", "--against", "git:main")[0] == 0
    for level in ("FULL", "NONE"):
        code, out, _ = check("schemas/t.avsc", "--against", "git:main", "--lint=logical-type-changed", "--level", level)
        assert code == 1
        assert re.search("timestamp-micros .*timestamp-millis .*main:schemas/t.avsc", out)


DECIMAL = '{"type": "bytes", "logicalType": "decimal", "precision": %d, "scale": %d}'


def test_changed_decimal_is_a_warning_by_default_and_an_error_on_request(repository: Path, check: Check) -> None:
    """Avro Java accepts both, and so does the verdict."""
    commit("price", schemas__p=RECORD_OF % (DECIMAL % (10, 2)))
    against = ("schemas/p.avsc", "--against", "git:main")
    Path("schemas/p.avsc").write_text(RECORD_OF % (DECIMAL % (10, 3)))
    code, out, _ = check(*against)
    assert code == 0
    assert re.search(r"\b3 .*\b2 .*main:schemas/p\.avsc", out)
    assert "DECIMAL_CHANGED" in out
    assert out.endswith("main:schemas/p.avsc (1 warning)\n")
    assert check(*against, "--lint", "decimal-changed=error")[0] == 1
    assert "warning" not in check(*against, "--lint", "decimal-changed=off")[1]
    assert "1 warning" in check(*against, "--lint", "naming")[1]
    Path("schemas/p.avsc").write_text(RECORD_OF % (DECIMAL % (9, 2)))
    assert re.search(r"\b9 .*\b10 .*main:schemas/p\.avsc", check(*against)[1])
    Path("schemas/p.avsc").write_text(RECORD_OF % (DECIMAL % (11, 2)))
    assert "warning" not in check(*against)[1], "more digits with the same scale do not change numbers"


def test_level_none_skips_default_lints(repository: Path, check: Check) -> None:
    commit("price", schemas__p=RECORD_OF % (DECIMAL % (10, 2)))
    Path("schemas/p.avsc").write_text(RECORD_OF % (DECIMAL % (10, 3)))
    none = ("schemas/p.avsc", "--against", "git:main", "--level", "NONE")
    assert "warning" not in check(*none)[1]
    assert check(*none, "--lint", "decimal-changed")[0] == 1


@pytest.mark.parametrize("words", [[], ["type-mismatch"], ["DECIMAL_CHANGED"]])
def test_explain_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compat", "explain", *words]) == 0
    out = capsys.readouterr().out
    assert (words[0].upper().replace("-", "_") if words else "NAME_MISMATCH") in out
    assert main(["compat", "explain", "nothing"]) == 2


def test_ambiguous_rename_is_an_error(repository: Path, check: Check) -> None:
    commit("twice", v1__order=ORDER % ("int", ""), v2__order=ORDER % ("string", ""))
    for name in ("v1", "v2", "schemas"):
        git("rm", "-q", f"{name}/order.avsc")
    Path("order.avsc").write_text(ORDER % ("long", NOTE))
    code, _, err = check("order.avsc", "--against", "git:main")
    assert (code, err.count("\n")) == (2, 1)
    assert re.search(r"schemas/order\.avsc, v1/order\.avsc, v2/order\.avsc .*\border\.avsc;", err)


OTHER = (
    '{"type": "record", "name": "Bought", "fields": [{"name": "nr", "type": "bytes"}, {"name": "t", "type": "int"}]}'
)


def test_moved_and_rewritten_file_is_found_by_subject(repository: Path, check: Check) -> None:
    """git detects no rename and no record has the same name, but a registry would compare the two."""
    git("rm", "-q", "schemas/order.avsc")
    Path("events/v2").mkdir(parents=True)
    Path("events/v2/order.avsc").write_text(OTHER)
    code, out, _ = check("events", "--against", "git:main")
    assert (code, "main:schemas/order.avsc" in out) == (1, True)
    assert re.search(r"schemas/order\.avsc .*\bmain$", out.rstrip())
    code, out, _ = check("events", "--against", "git:main", "--subject-strategy", "record", "--format", "json")
    assert (code, reports(out)["events/v2/order.avsc"]["new"]) == (0, True), "the subject differs"
    rule = ("--subject", "schemas/*=moved", "--subject", "events/*=moved", "--subject-strategy", "record")
    git("rm", "-q", "schemas/pay.avsc", "schemas/shop/header.avsc")
    code, out, err = check("events", "--against", "git:main", *rule)
    assert (code, err.count("\n"), "events/v2/order.avsc" in err) == (2, 1, True)
    assert check("events", "--against", "git:main:schemas/order.avsc")[0] == 1


def test_subject_precedes_git_rename_detection(repository: Path, check: Check) -> None:
    """A file that git considers renamed from another subject is compared with the file of its own subject."""
    commit("more", schemas__other=OTHER)
    git("mv", "schemas/other.avsc", "schemas/purchase.avsc")
    out = check("schemas/purchase.avsc", "--against", "git:main")[1]
    assert re.search(r"schemas/other\.avsc .*\bmain$", out.rstrip())
    git("mv", "schemas/order.avsc", "order.txt")
    git("rm", "-qf", "order.txt")
    Path("new").mkdir()
    Path("schemas/purchase.avsc").rename("new/order.avsc")
    out = check("new", "--against", "git:main")[1]
    assert re.search(r"schemas/order\.avsc .*\bmain$", out.rstrip())


def deletions(out: str) -> int:
    """Returns the number of findings of a deleted schema in a report."""
    return sum(line.endswith(" SCHEMA_DELETED") for line in out.splitlines())


@pytest.mark.parametrize("since", [(), ("--since", "main")])
def test_deleted_schema_is_reported(repository: Path, check: Check, since: tuple[str, ...]) -> None:
    arguments = ("schemas", "--against", "git:main", *since)
    git("rm", "-q", "schemas/order.avsc")
    code, out, _ = check(*arguments)
    assert (code, deletions(out), "schemas/order.avsc: error: " in out) == (1, 1, True)
    assert check("schemas/*.avsc", *arguments[1:])[0] == 1
    assert check("schemas/**/*.avsc", *arguments[1:])[0] == 1
    assert check(*arguments, "--level", "NONE")[0] == 0
    assert check("schemas/shop", *arguments[1:])[0] == 0, "not selected"
    assert check("schemas/pay.avsc", *arguments[1:])[0] == 0
    code, out, _ = check(*arguments, "--format", "json")
    report = reports(out)["schemas/order.avsc"]
    assert [report[key] for key in ("subject", "new", "compatible")] == ["order-value", False, False]
    Path("headrace.toml").write_text(
        '[[compat.suppressions]]\nrule = "SCHEMA_DELETED"\npath = "schemas/order.avsc"\nreason = "topic is gone"\n'
    )
    assert check(*arguments)[0] == 0
    Path("headrace.toml").unlink()
    assert check(*arguments, "--write-baseline", "known.json")[0] == 0
    assert check(*arguments, "--baseline", "known.json")[0] == 0
    Path("schemas/shop/order.avsc").write_text(ORDER % ("long", ""))
    assert check(*arguments)[0] == 0, "moved"
    Path("schemas/shop/order.avsc").rename("schemas/shop/bestellung.avsc")
    code, out, _ = check(*arguments)
    assert (code, "schemas/order.avsc" in out) == (0, True), "renamed"


@pytest.mark.parametrize("since", [(), ("--since", "main")])
@pytest.mark.parametrize("argument", ["schemas", "schemas/", "schemas/*.avsc", "./schemas"])
def test_deletion_of_the_only_schema_is_a_finding(
    repository: Path, check: Check, since: tuple[str, ...], argument: str
) -> None:
    """git deletes a directory with its last file."""
    git("rm", "-rq", "schemas")
    git("checkout", "-q", "HEAD", "--", "schemas/order.avsc")
    git("commit", "-qam", "only one")
    git("branch", "-f", "base")
    git("rm", "-q", "schemas/order.avsc")
    assert not Path("schemas").exists()
    arguments = ("--against", "git:base", *(("--since", "base") if since else ()))
    code, out, err = check(argument, *arguments)
    assert (code, deletions(out), err) == (1, 1, "")
    assert check("schema", *arguments)[0] == 2, "no such directory in the baseline"
    assert check("schemas/order.avsc", *arguments)[0] == 2, "named"
    Path("schemas").mkdir()
    code, out, err = check(argument, *arguments)
    assert (code, deletions(out), err) == (1, 1, "")
    Path("new").mkdir()
    Path("new/order.avsc").write_text(ORDER % ("long", ""))
    assert check(argument, "new", *arguments)[0] == 0, "moved"


def test_unselected_deleted_files_are_not_reported(repository: Path, check: Check) -> None:
    Path("schemas/data.json").write_text('{"type": "record"}')
    text = HEADER.replace("Header", "T") % "int"
    Path("schemas/type.json").write_text(text)
    commit("more", schemas___hidden__x=text, schemas__node_modules__y=text, other__z=text)
    Path("schemas/.hidden").mkdir()
    git("mv", "schemas/_hidden/x.avsc", "schemas/.hidden/x.avsc")
    commit("hidden")
    git("rm", "-qr", "schemas/.hidden", "schemas/node_modules", "schemas/data.json", "other")
    assert check("schemas", "--against", "git:main")[0] == 0
    assert check("schemas/**/*.avsc", "--against", "git:main")[0] == 1, "the pattern includes node_modules"
    git("rm", "-qr", "schemas/type.json")
    out = check("schemas", "--against", "git:main")[1]
    assert (deletions(out), "schemas/type.json: error: " in out) == (1, True)
    code, out, _ = check(".", "--against", "git:main")
    assert (code, deletions(out)) == (1, 2)


def test_since_ignores_earlier_deletions(repository: Path, check: Check) -> None:
    git("tag", "old")
    commit("gone", schemas__order=None)
    assert check("schemas", "--against", "git:old")[0] == 1
    assert check("schemas", "--against", "git:old", "--since", "main")[0] == 0
    git("rm", "-q", "schemas/pay.avsc")
    code, out, _ = check("schemas", "--against", "git:old", "--since", "main")
    assert (code, deletions(out), "schemas/pay.avsc" in out) == (1, 1, True)


def test_deleted_file_behind_link_has_repository_path(
    repository: Path, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit("shared", service__schemas__own=HEADER % "int", shared__order=ORDER % ("long", ""), shared__x=HEADER % "int")
    monkeypatch.chdir("service")
    Path("schemas/linked").symlink_to("../../shared")
    commit("linked")
    git("rm", "-q", "../shared/x.avsc")
    code, out, _ = check("schemas", "--against", "git:main", "--format", "github")
    assert (code, "file=shared/x.avsc" in out) == (1, True)


def test_deleted_file_of_path_in_revision(repository: Path, check: Check) -> None:
    commit("released", released__order=ORDER % ("long", ""), released__shop__header=HEADER % "long")
    git("rm", "-q", "schemas/order.avsc")
    code, out, _ = check("schemas", "--against", "git:main:released")
    assert (code, deletions(out), "schemas/order.avsc: error: " in out) == (1, 1, True)
    assert check("schemas/shop", "--against", "git:main:released/shop")[0] == 0
    assert check("schemas/shop", "--against", "git:main:released")[0] == 0, "the directory has another layout"
    assert check("schemas", "--against", "git:main:released/order.avsc", "--level", "NONE")[0] == 0


@pytest.mark.parametrize("since", [(), ("--since", "main")])
def test_another_file_of_the_subject_does_not_hide_a_deletion(
    repository: Path, check: Check, since: tuple[str, ...]
) -> None:
    """Each service of a repository may have its own orders schema, which existed before."""
    commit("more", services__a__order=ORDER % ("long", ""), services__b__order=ORDER % ("long", ""))
    git("rm", "-q", "services/a/order.avsc")
    code, out, _ = check("services", "schemas", "--against", "git:main", *since)
    assert (code, deletions(out)) == (1, 1)
    assert "services/a/order.avsc: error: " in out
    Path("services/c").mkdir()
    Path("services/c/order.avsc").write_text(ORDER % ("long", ""))
    assert check("services", "schemas", "--against", "git:main", *since)[0] == 0
