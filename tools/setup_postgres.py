"""Makes sure that PostgreSQL is on this machine: `python3 tools/setup_postgres.py`, before `make test-postgres`.

The tests start servers of their own from the package's programs and remove them again, so the package's own server is
neither needed nor started. On Debian and Ubuntu, as root, a missing package is installed; elsewhere one line says what
to do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

DEBIAN_VERSIONS = Path("/usr/lib/postgresql")
CLUSTER_SETTINGS = Path("/etc/postgresql-common/createcluster.conf")
LOG = Path(__file__).resolve().parent.parent / ".make" / "postgres.log"
PACKAGE = "postgresql"


class SetupError(Exception):
    """What cannot be done, in one line."""


def main() -> int:
    try:
        prepare()
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 2
    return 0


def prepare() -> None:
    if is_installed():
        return
    if shutil.which("apt-get") is None:
        raise SetupError("PostgreSQL's server is missing (initdb and postgres); install it with the system's packages")
    if os.geteuid() != 0:
        raise SetupError(f"PostgreSQL's server is missing; run: sudo apt-get install {PACKAGE}")
    print(f"set-up: PostgreSQL's server is missing; installing Debian's package {PACKAGE} (log: {LOG})", flush=True)
    LOG.parent.mkdir(exist_ok=True)
    if not CLUSTER_SETTINGS.exists():
        # Else the package makes a database of its own and starts a server on port 5432.
        CLUSTER_SETTINGS.parent.mkdir(parents=True, exist_ok=True)
        CLUSTER_SETTINGS.write_text("create_main_cluster = false\n", encoding="utf-8")
    run("apt-get", "update")
    # `--force-confold`, because the settings above are there before the package that brings the file.
    run("apt-get", "install", "--yes", "--no-install-recommends", "-o", "Dpkg::Options::=--force-confold", PACKAGE)
    if not is_installed():
        raise SetupError(f"the package {PACKAGE} brought no server; see {LOG}")


def is_installed() -> bool:
    return any(DEBIAN_VERSIONS.glob("*/bin/postgres")) or shutil.which("postgres") is not None


def run(*command: str) -> None:
    with LOG.open("ab") as log:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            check=False,
        )
    if ended.returncode:
        raise SetupError(f"{' '.join(command)} ended with {ended.returncode}; see {LOG}")


if __name__ == "__main__":
    sys.exit(main())
