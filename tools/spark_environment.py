"""Creates an environment with another release of Spark: `.venv/bin/python tools/spark_environment.py 3.5.7`.

The environment `.create_environment/spark-<release>` contains pyspark of that release and uses everything else from
`.venv`, including this checkout.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def create_environment(release: str) -> None:
    directory = ROOT / ".make" / f"spark-{release}"
    stamp = directory / ".complete"
    if stamp.exists():
        return
    venv.create(directory, clear=True, with_pip=True)
    pip = [str(directory / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, f"pyspark=={release}"], check=True)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)}))
    # Not a bare path: addsitedir also reads the .pth files of .venv.
    (site_packages / "rest.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    program = directory / "bin" / "headrace"
    program.write_text(
        f"#!{directory}/bin/python\nimport sys\n\nfrom headrace.cli import main\n\nsys.exit(main(sys.argv[1:]))\n"
    )
    program.chmod(0o755)
    stamp.touch()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} RELEASE")
    create_environment(sys.argv[1])
