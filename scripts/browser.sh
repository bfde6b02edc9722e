#!/bin/sh
# The live page is tested in a headless Chromium.
#   browser.sh check     say so if there is none
#   browser.sh install   install one where that is possible without asking, else say what to install
# A missing browser is not an error here: the tests that need it are skipped, and say so.
set -eu
. "$(dirname "$0")/privileged.sh"

# As tests/live/browser.py looks for it.
found() {
    [ -n "${WATERSMEET_BROWSER:-}" ] && command -v "$WATERSMEET_BROWSER" >/dev/null 2>&1 && return 0
    for name in chromium-headless-shell chromium chromium-browser google-chrome; do
        command -v "$name" >/dev/null 2>&1 && return 0
    done
    return 1
}

found && exit 0
if [ "${1:-check}" = install ] && can_install; then
    echo "setup: installing a headless browser, in which the live page is tested"
    install_package chromium-headless-shell || install_package chromium || true
    found && exit 0
fi
echo "note: no Chromium was found, so the live page's tests are skipped; install one (Debian: apt-get install" \
    "chromium-headless-shell; Fedora: dnf install chromium-headless; macOS: brew install chromium) or point" \
    "WATERSMEET_BROWSER at it" >&2
