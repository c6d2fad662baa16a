#!/bin/sh
# Packs what tasks import, for `yarn.dist.archives`: pack.sh CHECKOUT ARCHIVE
# Run it once for each release, on a machine with the same system, and the same Python at the same place, as YARN's.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/env"
# Not editable, which cannot be packed; and without pyspark, which Spark brings.
"$folder/env/bin/python" -m pip --disable-pip-version-check install --quiet "$1[executor]" venv-pack 'setuptools<81'
VIRTUAL_ENV="$folder/env" "$folder/env/bin/venv-pack" --quiet --force --prefix "$folder/env" --output "$2"
