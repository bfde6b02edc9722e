#!/bin/sh
# Build the wheel and the source archive into dist/, install the wheel with its dependencies into an empty environment
# below build/release, and run the README's examples there.
set -eu
cd "$(dirname "$0")/.."
. scripts/python.sh

rm -rf dist build/release
.venv/bin/python -m hatchling build
"$python" -m venv build/release/venv
env PIP_DISABLE_PIP_VERSION_CHECK=1 build/release/venv/bin/python -m pip install --quiet --no-input dist/*.whl
build/release/venv/bin/python -I tests/installed.py
echo "release: dist/ holds $(cd dist && echo *)"
