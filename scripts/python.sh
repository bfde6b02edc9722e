# Print a Python interpreter of 3.11 or later, $PYTHON first if it is set; sourced by the other scripts, which then use $python.
fits() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

python=
for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
    if fits "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "setup: no Python of 3.11 or later was found (looked for ${PYTHON:-python3 and python3.11 to python3.14});" \
        "install one, or name it: make setup PYTHON=/path/to/python" >&2
    exit 1
fi
