#!/bin/sh
# Prepare .venv in the project's root: the locked packages, this project installed in place, Java, a browser and Maven.
# May be run again at any time; `make setup` runs it only when something it depends on has changed.
set -eu
cd "$(dirname "$0")/.."
. scripts/python.sh
. scripts/privileged.sh

rm -f .venv/.ready
echo "setup: preparing .venv (a minute or so the first time)"

# An environment that lost its interpreter, is too old, or was made in another folder is of no use.
if ! fits .venv/bin/python || ! .venv/bin/python -m pip --version >/dev/null 2>&1 ||
    [ "$(cat .venv/.folder 2>/dev/null)" != "$(pwd)" ]; then
    rm -rf .venv
    if ! "$python" -m venv .venv >/dev/null 2>&1; then
        # Debian ships venv as a package of its own.
        version=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
        rm -rf .venv
        if ! { can_install && install_package "$version" && "$python" -m venv .venv; }; then
            echo "setup: $python cannot make a virtual environment; install its venv module" \
                "(Debian, Ubuntu: apt-get install $version)" >&2
            exit 1
        fi
    fi
    pwd >.venv/.folder
fi

pip="env PIP_DISABLE_PIP_VERSION_CHECK=1 .venv/bin/python -m pip install --quiet --no-input"
$pip -r requirements.lock
$pip --no-deps --no-build-isolation -e .
sh scripts/java.sh install
sh scripts/browser.sh install
sh scripts/servers.sh install
pwd >.venv/.ready
