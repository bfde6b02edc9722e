#!/bin/sh
# The joins on other versions of PySpark, each in an environment of its own, with a part of the tests of Spark.
#   versions.sh [VERSION ...]     those that are named, or the newest of 4.0, 4.1, 4.2 and 4.3
# An environment has its own PySpark, and all else of .venv. They are kept in build/versions, a few hundred MB each.
set -eu
cd "$(dirname "$0")/.."
places="tests/spark/test_every_verb.py tests/spark/test_kafka_rows.py tests/spark/test_delta.py"

[ $# -gt 0 ] || set -- 4.0.5 4.1.4 4.2.1 4.3.0
shared=$(.venv/bin/python -c 'import site; print(site.getsitepackages()[0])')
summary= failed=0
for version in "$@"; do
    home=$PWD/build/versions/$version
    if [ ! -e "$home/ready" ]; then
        echo "versions: preparing an environment with PySpark $version"
        rm -rf "$home"
        .venv/bin/python -m venv "$home"
        "$home/bin/python" -m pip install --quiet --no-input --disable-pip-version-check "pyspark==$version"
        # Behind its own packages come those of .venv, this project among them.
        own=$("$home/bin/python" -c 'import site; print(site.getsitepackages()[0])')
        echo "import site; site.addsitedir('$shared')" >"$own/shared.pth"
        touch "$home/ready"
    fi
    found=$("$home/bin/python" -W ignore -c 'import pyspark; print(pyspark.__version__)')
    [ "$found" = "$version" ] || { echo "versions: $home has PySpark $found, not $version; remove it" >&2; exit 1; }
    log=$home/log
    # Warnings are errors with the version that the lock names; what others warn of is not ours to mend.
    # shellcheck disable=SC2086  # lists of words
    if "$home/bin/python" -m pytest -q -p no:cacheprovider -W ignore $places ${ARGS:-} >"$log" 2>&1; then
        outcome=passed
    else
        outcome=FAILED failed=1
    fi
    echo "versions: PySpark $version: $outcome: $(grep -E '(passed|failed|error)' "$log" | tail -n 1); see $log"
    summary="$summary $version:$outcome"
done
echo "versions:$summary"
exit $failed
