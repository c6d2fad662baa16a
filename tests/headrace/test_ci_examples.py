"""Runs the steps of `examples/ci` and the pre-commit hooks in a sample repository."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.cli import _parser
from support.checkout import ROOT
from support.pages import blocks, page

EXAMPLES = ROOT / "examples" / "ci"
ORDER = '{"type": "record", "name": "Order", "fields": [\n  {"name": "id", "type": "long"}%s\n]}\n'
COMPATIBLE = ORDER % ',\n  {"name": "note", "type": "string", "default": ""}'
PINNED = f"git+https://git.example.com/headrace@{'a1' * 20}"
INCOMPATIBLE = ORDER % ',\n  {"name": "note", "type": "string"}'


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone with a branch `change` for a pull request to `main`. `headrace` is on the PATH, and pip does nothing."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "headrace").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headrace "$@"\n')
    (programs / "python").write_text("#!/bin/sh\nexit 0\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "a")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "a@example.com")
    origin = tmp_path / "origin"
    for command in (
        ["init", "-q", "-b", "main", str(origin)],
        ["-C", str(origin), "commit", "-q", "--allow-empty", "-m", "first"],
    ):
        subprocess.run(["git", *command], check=True)
    (origin / "schemas").mkdir()
    (origin / "schemas" / "order.avsc").write_text(ORDER % "")
    for command in (
        ["-C", str(origin), "add", "."],
        ["-C", str(origin), "commit", "-q", "-m", "schemas"],
        ["clone", "-q", str(origin), str(tmp_path / "clone")],
    ):
        subprocess.run(["git", *command], check=True)
    monkeypatch.chdir(tmp_path / "clone")
    subprocess.run(["git", "checkout", "-q", "-b", "change"], check=True)
    return tmp_path / "clone"


def shell(script: str, directory: str = ".", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a script as CI runners do: in bash, which exits at the first failed command."""
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    return subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def with_inputs(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{\{ *([\w.]+) *\}\}", lambda match: values[match[1]], text)


def run_action(repository: Path, **inputs: str) -> list[subprocess.CompletedProcess[str]]:
    action = load(EXAMPLES / "github-action" / "action.yml")
    assert set(inputs) <= set(action["inputs"])
    inputs = {"package": PINNED, **inputs}
    values = {f"inputs.{name}": inputs.get(name, spec.get("default")) for name, spec in action["inputs"].items()}
    values["github.base_ref"] = "main"
    done = []
    for step in action["runs"]["steps"]:
        if "run" in step and not (step["name"] == "Fetch the base branch" and values["inputs.against"]):
            environment = {name: with_inputs(text, values) for name, text in step.get("env", {}).items()}
            assert "${{" not in step["run"], "an input in a script would be executed as a command"
            where = with_inputs(step.get("working-directory", "."), values)
            done.append(shell(step["run"], where, GITHUB_STEP_SUMMARY=str(repository / "summary.md"), **environment))
            if done[-1].returncode:
                break
    return done


def test_github_action_reports_incompatible_schemas(repository: Path) -> None:
    Path("schemas/order.avsc").write_text(COMPATIBLE)
    assert [step.returncode for step in run_action(repository)] == [0, 0, 0]
    Path("schemas/order.avsc").write_text(INCOMPATIBLE)
    last = run_action(repository, level="FULL", arguments="--verbose --quiet")[-1]
    assert last.returncode == 1, last.stderr
    assert last.stdout.startswith("::error file=schemas/order.avsc,line=3,col=3,title=Avro READER_FIELD_MISSING")
    assert "**incompatible**" in Path("summary.md").read_text()
    (run,) = json.loads(Path("headrace-compat.sarif").read_text())["runs"]
    assert run["results"][0]["properties"]["compatibilityLevel"] == "FULL"
    in_directory = run_action(repository, directory="schemas", schemas="order.avsc")[-1]
    assert in_directory.stdout.startswith("::error file=schemas/order.avsc,line=3"), (
        "paths of annotations are relative to the repository"
    )
    assert run_action(repository, against="git:nowhere")[-1].returncode == 2
    assert run_action(repository, schemas="schemas; touch hacked")[-1].returncode == 2
    assert not Path("hacked").exists()


def test_gitlab_template_reports_incompatible_schemas(repository: Path) -> None:
    job = load(EXAMPLES / "gitlab-ci.yml")[".avro-compat"]
    environment = {name: str(value) for name, value in job["variables"].items()}
    environment |= {
        "HEADRACE_PACKAGE": PINNED,
        "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main",
        "CI_DEFAULT_BRANCH": "main",
    }
    script = "\n".join([*job["before_script"], *job["script"]])
    assert shell(script, **environment).returncode == 0
    assert json.loads(Path("gl-code-quality-report.json").read_text()) == []
    Path("schemas/order.avsc").write_text(INCOMPATIBLE)
    failed = shell(script, **environment)
    assert failed.returncode == 1, failed.stderr
    reports = job["artifacts"]["reports"]
    (entry,) = json.loads(Path(reports["codequality"]).read_text())
    assert entry["location"] == {"path": "schemas/order.avsc", "lines": {"begin": 3}}
    assert ET.parse(reports["junit"]).find("testsuite/testcase/failure") is not None
    assert shell(script, **{**environment, "CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "gone"}).returncode != 0


def test_jenkinsfile_reports_incompatible_schemas(repository: Path) -> None:
    commands = re.findall(r"^ *sh '(.*)'$", (EXAMPLES / "Jenkinsfile").read_text(), re.MULTILINE)
    assert shell("\n".join(commands), CHANGE_TARGET="main").returncode == 0
    Path("schemas/order.avsc").write_text(INCOMPATIBLE)
    failed = shell("\n".join(commands), CHANGE_TARGET="main")
    assert failed.returncode == 1, failed.stderr
    assert ET.parse("headrace-compat.xml").find("testsuite/testcase/failure") is not None


def test_all_examples_reject_a_removed_field_that_only_old_readers_need(repository: Path) -> None:
    """The examples have the same level, FULL."""
    Path("schemas/order.avsc").write_text(ORDER.replace('{"name": "id", "type": "long"}', "") % "")
    job = load(EXAMPLES / "gitlab-ci.yml")[".avro-compat"]
    gitlab = {"HEADRACE_PACKAGE": PINNED, "CI_DEFAULT_BRANCH": "main"}
    (repo,) = load(EXAMPLES / "pre-commit-config.yaml")["repos"]
    (hook,) = [hook for hook in repo["hooks"] if hook["id"] == "avro-compat"]
    (documented,) = [code for code in blocks(page("docs/compat.md"), "sh") if len(code.splitlines()) == 1]
    jenkins = re.findall(r"^ *sh '(.*)'$", (EXAMPLES / "Jenkinsfile").read_text(), re.MULTILINE)
    found = {
        "github": run_action(repository)[-1].returncode,
        "gitlab": shell(
            "\n".join(job["script"]), **({name: str(value) for name, value in job["variables"].items()} | gitlab)
        ).returncode,
        "jenkins": shell("\n".join(jenkins), CHANGE_TARGET="main").returncode,
        "pre-commit": run_hook("avro-compat", "schemas/order.avsc", args=hook["args"]).returncode,
        "pre-commit before a commit": run_hook("avro-compat", "schemas/order.avsc").returncode,
        "docs": shell(documented).returncode,
    }
    assert found == dict.fromkeys(found, 1)


COMMIT = "a" * 40
NOT_PINNED = (
    "",
    "headrace",
    "headrace==0.1.0",
    "headrace[all]",
    "headrace @ https://x/y.whl",
    "git+https://x/y@main",
    f"x@{COMMIT}",
    f"https://x/y@{COMMIT}",
    f"https://x/y@{COMMIT}.whl",
    f"https://x/y.whl#sha256={'g' * 64}",
    # pip would take the branch of these, or files that name further packages.
    f"git+https://x/y@main#subdirectory=@{COMMIT}",
    f"git+https://x/y@main?@{COMMIT}",
    f"git+https://x/y@main#sha256={'0' * 64}",
    f"git+https://x@{COMMIT}",
    f"-rhttps://x/y.txt#sha256={'0' * 64}",
    f"--index-url=git+https://x/y@{COMMIT}",
    f"headrace\ngit+https://x/y@{COMMIT}",
)


@pytest.mark.parametrize("package", NOT_PINNED)
def test_packages_that_are_not_pinned_are_rejected(repository: Path, package: str) -> None:
    Path("headrace").mkdir()  # pip takes it for a path only as ./headrace
    (last,) = run_action(repository, package=package)
    assert (last.returncode, "::error::package: expected a URL" in last.stdout) == (2, True)
    assert "default" not in load(EXAMPLES / "github-action" / "action.yml")["inputs"]["package"]
    job = load(EXAMPLES / "gitlab-ci.yml")[".avro-compat"]
    assert job["variables"]["HEADRACE_PACKAGE"] == ""
    done = shell(job["before_script"][0], HEADRACE_PACKAGE=package)
    assert (done.returncode, "HEADRACE_PACKAGE: expected a URL" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "package",
    [
        PINNED,
        f"headrace[all] @ {PINNED}",
        f"https://x/y.whl#sha256={'0a' * 32}",
        "./schemas",
        "schemas/order.avsc",
        ".",
    ],
)
def test_pinned_packages_are_installed(repository: Path, package: str) -> None:
    assert len(run_action(repository, package=package)) == 3
    job = load(EXAMPLES / "gitlab-ci.yml")[".avro-compat"]
    assert shell(job["before_script"][0], HEADRACE_PACKAGE=package).returncode == 0


def test_action_does_not_make_a_complete_clone_shallow(repository: Path) -> None:
    """Fetching one commit of the base branch would make the clone shallow, without the point where the branch left."""
    run_action(repository)
    assert shell("git rev-parse --is-shallow-repository").stdout == "false\n"


def test_samples_pin_their_packages() -> None:
    (repo,) = load(EXAMPLES / "pre-commit-config.yaml")["repos"]
    assert re.fullmatch("[0-9a-f]{40}", repo["rev"])
    steps = load(EXAMPLES / "github-workflow.yml")["jobs"]["compat"]["steps"]
    (step,) = [step for step in steps if step["uses"].endswith("avro-compat")]
    assert re.fullmatch("git\\+https://.*@[0-9a-f]{40}", step["with"]["package"])


def hooks() -> dict[str, dict[str, Any]]:
    return {hook["id"]: hook for hook in load(ROOT / ".pre-commit-hooks.yaml")}


def run_hook(name: str, *files: str, args: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a hook as pre-commit does: the entry, its arguments, then the files."""
    hook = hooks()[name]
    assert all(re.search(hook["files"], file) for file in files)
    command = [*hook["entry"].split(), *(hook.get("args", []) if args is None else args), *files]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_pre_commit_hooks_report_incompatible_schemas(repository: Path) -> None:
    assert set(hooks()) == {"avro-validate", "avro-compat"}
    file = "schemas/order.avsc"
    Path(file).write_text(COMPATIBLE)
    assert run_hook("avro-validate", file).returncode == 0
    compatible = run_hook("avro-compat", file)
    assert (compatible.returncode, compatible.stdout, compatible.stderr) == (0, "", "")
    Path(file).write_text(INCOMPATIBLE)
    assert run_hook("avro-validate", file).returncode == 0
    assert run_hook("avro-compat", file).returncode == 1
    Path(file).write_text('{"type": }')
    broken = run_hook("avro-validate", file)
    assert broken.returncode == 3
    assert broken.stderr.startswith(f"{file}:1:10: error: ")


def test_sample_configuration_uses_existing_hooks(repository: Path) -> None:
    (repo,) = load(EXAMPLES / "pre-commit-config.yaml")["repos"]
    assert {hook["id"] for hook in repo["hooks"]} == set(hooks())
    for hook in repo["hooks"]:
        done = run_hook(hook["id"], "schemas/order.avsc", args=hook.get("args"))
        assert done.returncode == 0, done.stderr


def test_workflow_uses_existing_inputs_of_the_action() -> None:
    steps = load(EXAMPLES / "github-workflow.yml")["jobs"]["compat"]["steps"]
    (step,) = [step for step in steps if step["uses"].endswith("avro-compat")]
    assert set(step["with"]) <= set(load(EXAMPLES / "github-action" / "action.yml")["inputs"])


def test_arguments_of_hooks_are_existing_flags() -> None:
    for hook in hooks().values():
        arguments = [*hook["entry"].split()[1:], *hook.get("args", []), "a.avsc", "b.avsc"]
        parsed = _parser(arguments).parse_args(arguments)
        assert parsed.schemas == ["a.avsc", "b.avsc"]
