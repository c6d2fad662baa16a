#!/bin/sh
# Packs what tasks import, for `yarn.dist.archives`: pack.sh CHECKOUT ARCHIVE
# Run it once for each release, on a machine with the same system, and the same Python at the same place, as YARN's.
set -eu
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
"${PYTHON:-python3}" -m venv "$directory/env"
# Not editable, which cannot be packed; and without pyspark, which Spark brings.
"$directory/env/bin/python" -m pip --disable-pip-version-check install --quiet "$1[executor]" venv-pack 'setuptools<81'
VIRTUAL_ENV="$directory/env" "$directory/env/bin/venv-pack" --quiet --force --prefix "$directory/env" --output "$2"
