"""What `import headrace` offers, and what it refuses to run on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(__file__).resolve().parent.parent.parent


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)


def test_public_names_are_imported_when_used() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import headrace
assert "kafka" not in sys.modules and "fastavro" not in sys.modules
assert headrace.RegistryClient.__name__ == "RegistryClient"
assert "kafka" not in sys.modules
assert headrace.Producer.__module__ == "pipeline.producer"
assert headrace.Consumer.__module__ == "pipeline.consumer"
"""
    found = run(program, ROOT)
    assert found.returncode == 0, found.stderr


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="'headrace' has no attribute 'Nothing'"):
        _ = headrace.Nothing
    assert {"Consumer", "Producer", "RegistryClient"} <= set(dir(headrace))


@pytest.mark.parametrize("shadow", ["audit.py", "pipeline/__init__.py"])
def test_a_package_of_the_same_name_is_named(shadow: str, tmp_path: Path) -> None:
    path = tmp_path / shadow
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    found = run(f"import sys; sys.path.append({str(ROOT)!r}); import headrace", tmp_path)
    assert found.returncode == 1
    room = shadow.partition("/")[0].removesuffix(".py")
    place = path if shadow.endswith("audit.py") else path.parent
    assert f"headrace needs its own package '{room}' at {ROOT / room}, but Python finds {place}" in found.stderr
