#!/bin/sh
# Choose the newest versions that pyproject.toml allows, for every supported Python, and write them to requirements.lock.
# The file names versions only, no place to get them from: that is the business of each machine's pip settings.
set -eu
cd "$(dirname "$0")/.."
. scripts/python.sh

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
"$python" -m venv "$tools"
"$tools/bin/python" -m pip install --quiet --no-input uv
"$tools/bin/uv" pip compile --quiet --upgrade --universal --python-version 3.11 --extra dev \
    --no-emit-index-url --no-annotate --no-header pyproject.toml >"$tools/requirements.lock"
{
    echo "# Exact versions of everything the development environment holds; made by 'make lock', not by hand."
    cat "$tools/requirements.lock"
} >requirements.lock
