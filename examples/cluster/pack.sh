#!/bin/sh
# Packs the modules that tasks import, for `yarn.dist.archives`: pack.sh CHECKOUT ARCHIVE [EXTRA]
# The extra `driver` adds those of the driver, which runs in a container too with `--deploy-mode cluster`.
# Run it once for each release, on a machine with the same operating system and the same Python at the same path as YARN's.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
"${PYTHON:-python3}" -m venv "$directory/env"
# Not an editable install, which cannot be packed; without pyspark, which Spark ships.
"$directory/env/bin/python" -m pip --disable-pip-version-check install --quiet "$1[${3:-executor}]" venv-pack 'setuptools<81'
VIRTUAL_ENV="$directory/env" "$directory/env/bin/venv-pack" --quiet --force --prefix "$directory/env" --output "$2"
