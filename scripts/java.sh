#!/bin/sh
# Spark needs a Java runtime of 17 or later.
#   java.sh check     say so if there is none
#   java.sh install   install one where that is possible without asking, else say what to install
# A missing runtime is not an error here: everything but Spark works without it.
set -eu
. "$(dirname "$0")/privileged.sh"

# The major version of a java, 0 if it does not run: 'version "17.0.15"' is 17, and the old style 'version "1.8.0"' is 1.
major() {
    "$1" -version 2>&1 | sed -n 's/.*version "\([0-9][0-9]*\).*/\1/p' | head -n 1 | grep . || echo 0
}

# As PySpark does: JAVA_HOME counts if it is set, else the java on the PATH.
found() {
    java=java
    if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi
    [ "$(major "$java")" -ge 17 ]
}

found && exit 0
# A JAVA_HOME that leads elsewhere is the user's to set right: no package would change it.
if [ "${1:-check}" = install ] && [ -z "${JAVA_HOME:-}" ] && can_install; then
    echo "setup: installing a Java runtime, which Spark needs"
    for package in openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless; do
        install_package "$package" && break
    done
    found && exit 0
fi
echo "note: no Java runtime of 17 or later was found, so Spark cannot run; install one" \
    "(Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless;" \
    "macOS: brew install openjdk@17) or point JAVA_HOME at it" >&2
