"""`compat check --against-registry` never disagrees with a registration of the same schema.

Hypothesis generates subjects in two contexts with their versions, partly deleted, with and without metadata;
configuration globally, per context and per subject; and aliases, partly of other aliases.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from headrace.cli import main
from headrace.registry.client import RegistryClient, SchemaReference
from headrace.registry.errors import IncompatibleSchema, SubjectNotFound, VersionNotFound
from support.examples import examples
from support.registry.served_registry import ServedRegistry, serve_registry

TYPES = (
    '"int"',
    '"long"',
    '"string"',
    '["null", "int"]',
    '{"type": "int", "logicalType": "date"}',
    '{"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}',
    '{"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}',
    '"Kind"',
)
KIND = '{"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"%s]}}'
NUMBERS = itertools.count(1)
ALL_CONTEXTS_SCOPE = ":.__GLOBAL:"


@dataclass(frozen=True)
class Version:
    text: str
    metadata: dict[str, str] | None
    is_deleted: bool


@dataclass(frozen=True)
class World:
    """Versions and candidates by short subject name: `a` and `b` in the default context, `c/a` and `c/b` in another."""

    histories: dict[str, list[Version]]
    configs: dict[str, dict[str, Any]]
    subject: str
    candidate: str


@st.composite
def texts(draw: st.DrawFn) -> str:
    fields = [KIND % draw(st.sampled_from(["", ', "B"']))]
    for name in draw(st.lists(st.sampled_from(["x", "y", "z"]), unique=True, max_size=2)):
        default = (
            draw(st.sampled_from(["", ', "default": null']))
            if (kind := draw(st.sampled_from(TYPES)))[:1] == "["
            else ""
        )
        fields.append(f'{{"name": "{name}", "type": {kind}{default}}}')
    if draw(st.booleans()):
        fields.append('{"name": "more", "type": "int", "default": 0}')
    return f'{{"type": "record", "name": "R", "fields": [{", ".join(fields)}]}}'


RESERVED = st.sampled_from(["x", "x, y", "more"])
GROUPS = st.sampled_from(["1", "2"])
PROPERTIES = st.fixed_dictionaries(
    {"group": GROUPS}, optional={"confluent:reserved": RESERVED}
) | st.fixed_dictionaries({"confluent:reserved": RESERVED})
METADATA = st.none() | PROPERTIES
LEVELS = ("NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE")
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "compatibility": st.sampled_from(LEVELS),
    "compatibilityPolicy": st.sampled_from(["STRICT", "LENIENT", "LOGICAL"]),
    "compatibilityGroup": st.just("group"),
    "validateFields": st.booleans(),
    "normalize": st.booleans(),
    "defaultMetadata": PROPERTIES.map(lambda found: {"properties": found}),
    "overrideMetadata": PROPERTIES.map(lambda found: {"properties": found}),
}
SUBJECTS = ("a", "b", "c/a", "c/b")
ALIASES = {"alias": st.sampled_from(["a", "b", "c/a", "c/b", "new"])}


@st.composite
def worlds(draw: st.DrawFn) -> World:
    pool = draw(st.lists(texts(), min_size=1, max_size=4, unique=True))
    versions = st.builds(Version, st.sampled_from(pool), METADATA, st.sampled_from([False, False, True]))
    histories = {name: draw(st.lists(versions, max_size=3)) for name in SUBJECTS}
    configs = {scope: draw(st.fixed_dictionaries({}, optional=SETTINGS)) for scope in ("", "c/")}
    of_subject = st.fixed_dictionaries({}, optional=SETTINGS | ALIASES)
    configs |= {name: draw(of_subject) for name in SUBJECTS}
    return World(histories, configs, draw(st.sampled_from((*SUBJECTS, "new"))), draw(st.sampled_from(pool) | texts()))


class RegisteredWorld:
    """A world in a registry, with unique subject names."""

    def __init__(self, world: World, client: RegistryClient) -> None:
        self.world = world
        self.client = client
        self.number = next(NUMBERS)
        # Resets the settings outside of subjects that the previous world or another test has left.
        client.set_config(dict.fromkeys(SETTINGS), ALL_CONTEXTS_SCOPE)
        client.set_config(dict.fromkeys(SETTINGS) | {"compatibility": "NONE"})
        client.set_config({"compatibility": "NONE"}, self.name("c/"))
        for short, versions in world.histories.items():
            for version in versions:
                self._add(short, version)
        client.set_config({"compatibility": None}, self.name("c/"))
        client.set_config({"compatibility": None})
        for short, config in world.configs.items():
            values = {**config, "alias": self.name(config["alias"])} if "alias" in config else config
            if values:
                client.set_config(values, self.name(short) if short else None)

    def name(self, short: str) -> str:
        context, slash, name = short.rpartition("/")
        return f":.{context}{self.number}:{name and f'{name}{self.number}'}" if slash else f"{name}{self.number}"

    def _add(self, short: str, version: Version) -> None:
        subject = self.name(short)
        found = self.client.register(subject, version.text, metadata=version.metadata)
        if version.is_deleted and found.version in self._numbers(subject):
            self.client.delete_version(subject, found.version or 0)

    def _numbers(self, subject: str) -> list[int]:
        return self.client.versions(subject)

    def check(self, directory: Path) -> tuple[int, str]:
        path = directory / "r.avsc"
        path.write_text(self.world.candidate)
        out = io.StringIO()
        subject = self.name(self.world.subject)
        arguments = ["--against-registry", self.client.url, "--subject", subject, "--all-new", "--verbose"]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = main(["compat", "check", str(path), *arguments])
        return code, out.getvalue()

    def register(self) -> str:
        """ "" on success, otherwise the reason."""
        try:
            self.client.register(self.name(self.world.subject), self.world.candidate)
        except IncompatibleSchema as error:
            return str(error) or "refused"
        return ""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRegistry]:
    with serve_registry(f"sqlite:///{tmp_path_factory.mktemp('agrees')}/registry.db") as registry:
        yield registry


def of(kind: str) -> str:
    return f'{{"type": "record", "name": "R", "fields": [{{"name": "x", "type": {kind}}}]}}'


INT, LONG, STRING, DATE = of(TYPES[0]), of(TYPES[1]), of(TYPES[2]), of(TYPES[4])
TWO_GROUPS = [Version(STRING, {"group": "1"}, False), Version(INT, {"group": "2"}, False)]


def world_with(**changes: Any) -> World:
    """A world with one version, an incompatible candidate, and the given settings."""
    histories = {"a": [Version(LONG, None, False)]}
    world: dict[str, Any] = {"histories": histories, "configs": {}, "subject": "a", "candidate": STRING}
    return World(**{**world, **changes})


TRANSITIVE = {"a": {"compatibility": "BACKWARD_TRANSITIVE", "compatibilityGroup": "group"}}


@example(world_with())
@example(world_with(configs={"b": {"alias": "a"}}, subject="b"))
@example(world_with(configs={"b": {"alias": "a", "compatibility": "NONE"}}, subject="b"))
@example(world_with(configs={"b": {"alias": "a"}, "a": {"compatibility": "NONE"}}, subject="b"))
@example(world_with(configs={"b": {"alias": "a"}, "a": {"alias": "c/a"}}, subject="b"))
@example(world_with(configs={"b": {"alias": "c/a"}}, subject="b", histories={"c/a": [Version(LONG, None, False)]}))
@example(world_with(histories={"c/a": [Version(LONG, None, False)]}))
@example(world_with(histories={"a": [Version(DATE, None, False)]}, candidate=INT))
@example(
    world_with(
        histories={"a": [Version(DATE, None, False)]}, candidate=INT, configs={"": {"compatibilityPolicy": "LOGICAL"}}
    )
)
@example(world_with(histories={"a": [Version(STRING, None, False), Version(LONG, None, False)]}))
@example(
    world_with(
        candidate=LONG,
        configs={"a": {"validateFields": True, "overrideMetadata": {"properties": {"confluent:reserved": "x"}}}},
    )
)
@example(world_with(histories={"a": TWO_GROUPS}, configs=TRANSITIVE, candidate=LONG))
@example(
    world_with(
        histories={"a": TWO_GROUPS},
        configs={"a": {"compatibilityGroup": "group", "overrideMetadata": {"properties": {"group": "1"}}}},
        candidate=LONG,
    )
)
@given(worlds())
@settings(
    max_examples=examples(0.2),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_check_agrees_with_registration(registry: ServedRegistry, tmp_path: Path, world: World) -> None:
    registered = RegisteredWorld(world, RegistryClient(registry.url))
    code, output = registered.check(tmp_path)
    refused = registered.register()
    assert code == (1 if refused else 0), f"check: {output}\nregistration: {refused}\n{json.dumps(world.configs)}"


DIRECTORIES = {"d": 16, "c": 14}
"""Number of files in the default context and in another one; together too many for single requests."""

INLINE_KIND = re.compile(r'"type": (\{"type": "enum", "name": "Kind", "symbols": \[[^]]*\]\})')
KINDS = (
    '{"type": "enum", "name": "Kind", "symbols": ["A"]}',
    '{"type": "enum", "name": "Kind", "symbols": ["A", "B"]}',
)
"""Versions of the referenced schemas. A checkout has the newest."""


METADATA_KEYS = ("defaultMetadata", "overrideMetadata")


@dataclass(frozen=True)
class GeneratedFile:
    """A file of a run: the registered versions of its subject, and its content.

    The number in a version is that of the `Kind` version that it references; 0 if it defines the type itself.
    """

    versions: tuple[tuple[str, int, dict[str, str] | None, bool], ...]
    config: dict[str, Any]
    alias: int | None
    """Index of the file with the subject that this alias refers to."""
    candidate: str


@st.composite
def generated_file(draw: st.DrawFn, pool: list[str], count: int) -> GeneratedFile:
    chosen = st.tuples(
        st.sampled_from(pool), st.integers(0, len(KINDS)), METADATA, st.sampled_from([False, False, False, True])
    )
    return GeneratedFile(
        tuple(draw(st.lists(chosen, max_size=3))),
        draw(st.fixed_dictionaries({}, optional=SETTINGS)),
        draw(st.none() | st.none() | st.integers(0, count - 1)),
        draw(st.sampled_from(pool)),
    )


@st.composite
def generated_files(draw: st.DrawFn) -> tuple[dict[str, dict[str, Any]], dict[str, list[GeneratedFile]]]:
    """The configuration around the subjects, and the files of each directory."""
    around = st.fixed_dictionaries({}, optional=SETTINGS)
    pool = draw(st.lists(texts(), min_size=3, max_size=5, unique=True))
    files = {name: [draw(generated_file(pool, count)) for _ in range(count)] for name, count in DIRECTORIES.items()}
    return {scope: draw(around) for scope in (ALL_CONTEXTS_SCOPE, "", "c")}, files


class GeneratedFiles:
    """Files of two directories, with subjects in one context each, in a registry and in a checkout."""

    def __init__(self, client: RegistryClient, directory: Path) -> None:
        self.client = client
        self.directory = directory
        self.number = next(NUMBERS)
        self.candidates: dict[str, tuple[str, list[SchemaReference]]] = {}

    def scope(self, directory: str) -> str:
        return f":.crowd{self.number}:" if directory == "c" else ""

    def subject(self, directory: str, name: str) -> str:
        return f"{self.scope(directory)}crowd{self.number}-{name}"

    def kind(self, directory: str, version: int) -> list[SchemaReference]:
        return [SchemaReference("Kind", self.subject(directory, "kind"), version)] if version else []

    def make(self, around: dict[str, dict[str, Any]], files: dict[str, list[GeneratedFile]]) -> None:
        for scope in (ALL_CONTEXTS_SCOPE, None, self.scope("c")):
            # Resets the settings of the previous crowd.
            self.client.set_config(dict.fromkeys(SETTINGS) | {"compatibility": "NONE"}, scope)
        for directory, members in files.items():
            (self.directory / directory).mkdir(parents=True)
            for text in KINDS:
                self.client.register(self.subject(directory, "kind"), text)
            self._write(directory, "kind", KINDS[-1], 0)
            for number, member in enumerate(members):
                self._add(directory, f"{directory}{number:02}", member)
        for scope in (self.scope("c"), None, ALL_CONTEXTS_SCOPE):
            self.client.set_config({"compatibility": None}, scope)
        for scope, config in around.items():
            if config:
                self.client.set_config(config, self.scope("c") if scope == "c" else scope or None)
        for directory, members in files.items():
            for number, member in enumerate(members):
                target = (
                    {} if member.alias is None else {"alias": self.subject(directory, f"{directory}{member.alias:02}")}
                )
                if member.config or target:
                    self.client.set_config(
                        {**member.config, **target}, self.subject(directory, f"{directory}{number:02}")
                    )

    def _add(self, directory: str, name: str, member: GeneratedFile) -> None:
        subject = self.subject(directory, name)
        for text, kind, metadata, is_deleted in member.versions:
            shown = INLINE_KIND.sub('"type": "Kind"', text) if kind else text
            found = self.client.register(subject, shown, self.kind(directory, kind), metadata=metadata)
            if is_deleted and found.version in self.client.versions(subject):
                self.client.delete_version(subject, found.version or 0)
        self._write(directory, name, member.candidate, len(KINDS))

    def _write(self, directory: str, name: str, text: str, kind: int) -> None:
        # No version has this text, so no check compares a version with itself.
        text = INLINE_KIND.sub('"type": "Kind"', text).replace("{", '{"doc": "of the checkout", ', 1) if kind else text
        (self.directory / directory / f"{name}.avsc").write_text(text)
        self.candidates[self.subject(directory, name)] = text, self.kind(directory, kind)

    def check(self) -> dict[str, bool]:
        """One run over all files: whether each subject is compatible."""
        out = io.StringIO()
        subjects = [f"--subject={self.directory}/{name}/*={self.subject(name, '{stem}')}" for name in DIRECTORIES]
        arguments = ["--against-registry", self.client.url, "--all-new", "--format", "json", *subjects]
        with contextlib.redirect_stdout(out):
            code = main(["compat", "check", str(self.directory), *arguments])
        assert code in (0, 1), out.getvalue()
        return {report["subject"]: report["compatible"] for report in json.loads(out.getvalue())["reports"]}

    def check_by_request(self) -> dict[str, bool]:
        """The same by `/compatibility`, with the metadata that a registration would add."""
        responses: dict[str, bool] = {}
        for subject, (text, references) in self.candidates.items():
            given = [{"name": item.name, "subject": item.subject, "version": item.version} for item in references]
            body = {"schema": text, "references": given, "metadata": {"properties": self._metadata(subject)}}
            response = self.client.call("POST", f"/compatibility/subjects/{subject}/versions", body=body)
            responses[subject] = response["is_compatible"]
        return responses

    def _metadata(self, subject: str) -> dict[str, str]:
        config = self.client.config(self.client.config(subject).get("alias", subject))
        weaker, stronger = ((config.get(key) or {}).get("properties", {}) for key in METADATA_KEYS)
        try:
            known = self.client.version(subject, "latest").metadata
        except (SubjectNotFound, VersionNotFound):
            known = {}
        return {**weaker, **known, **stronger}


@given(generated_files())
@settings(
    max_examples=examples(0.03),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking a crowd takes minutes
)
def test_one_run_over_many_files_agrees_with_the_registry(
    registry: ServedRegistry, tmp_path_factory: pytest.TempPathFactory, crowd: Any
) -> None:
    registered = GeneratedFiles(RegistryClient(registry.url), tmp_path_factory.mktemp("crowd"))
    registered.make(*crowd)
    registry.calls.clear()
    checked = registered.check()
    assert registry.calls["GET /schemas"], "they are listed"
    by_request = registered.check_by_request()
    assert checked.keys() == by_request.keys()
    # An existing version may always be registered again.
    kinds = {registered.subject(directory, "kind") for directory in DIRECTORIES}
    assert {subject for subject in checked if checked[subject] != by_request[subject]} - kinds == set()
