"""Oozie's schemas accept the examples, and reject invalid element order and names as Oozie does."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest
import xmlschema

from support.checkout import ROOT

pytestmark = pytest.mark.java

EXAMPLES = ROOT / "examples"
WORKFLOW, COORDINATOR = "schedule/oozie/workflow.xml", "schedule/oozie/coordinator.xml"
SHELL_WORKFLOW = "cluster/oozie/workflow.xml"
POM = ROOT / "tests" / "support" / "servers" / "oozie.pom.xml"


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Extracts the schemas from Oozie's client, which Maven downloads."""
    if shutil.which("mvn") is None:
        pytest.skip("no Maven on the PATH to fetch Oozie's schemas with")
    directory = tmp_path_factory.mktemp("oozie")
    listed = directory / "classpath"
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:build-classpath", f"-Dmdep.outputFile={listed}"]
    subprocess.run(command, check=True, capture_output=True, timeout=600, stdin=subprocess.DEVNULL)
    with zipfile.ZipFile(listed.read_text(encoding="utf-8").strip()) as client:
        for name in client.namelist():
            if name.endswith(".xsd"):
                client.extract(name, directory)
    return directory


def schema_of(document: ElementTree.Element, directory: Path) -> xmlschema.XMLSchema:
    """Returns a schema of all namespaces in the document, so that actions are validated too."""
    namespaces = {element.tag.partition("}")[0][1:] for element in document.iter()}
    found = {ElementTree.parse(path).getroot().get("targetNamespace", ""): path for path in directory.rglob("*.xsd")}
    assert namespaces <= found.keys(), namespaces - found.keys()
    imports = "".join(f'<xs:import namespace="{one}" schemaLocation="{found[one].as_uri()}"/>' for one in namespaces)
    return xmlschema.XMLSchema(f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{imports}</xs:schema>')


def errors_of(document: ElementTree.Element, directory: Path) -> list[str]:
    return [error.reason or "" for error in schema_of(document, directory).iter_errors(document)]


def parsed(name: str) -> ElementTree.Element:
    return ElementTree.parse(EXAMPLES / name).getroot()


@pytest.mark.parametrize("name", [WORKFLOW, COORDINATOR, SHELL_WORKFLOW])
def test_oozie_accepts_the_example(name: str, schemas: Path) -> None:
    assert errors_of(parsed(name), schemas) == []


@pytest.mark.parametrize(
    ("name", "parent", "child"),
    [
        (WORKFLOW, ".//{*}action/{*}ssh", "command"),
        (WORKFLOW, ".//{*}action", "error"),
        (WORKFLOW, ".", "start"),
        (SHELL_WORKFLOW, ".//{*}action/{*}shell", "exec"),
        (COORDINATOR, "{*}action/{*}workflow", "app-path"),
        (COORDINATOR, ".", "action"),
    ],
)
def test_oozie_rejects_missing_element(name: str, parent: str, child: str, schemas: Path) -> None:
    document = parsed(name)
    parent_element = document if parent == "." else document.find(parent)
    assert parent_element is not None
    removed = parent_element.find(f"{{*}}{child}")
    assert removed is not None
    schema = schema_of(document, schemas)
    parent_element.remove(removed)
    assert list(schema.iter_errors(document))


def test_oozie_rejects_unknown_element(schemas: Path) -> None:
    document = parsed(COORDINATOR)
    controls = document.find("{*}controls")
    assert controls is not None
    ElementTree.SubElement(controls, controls.tag.replace("controls", "overlap")).text = "never"
    assert errors_of(document, schemas)
