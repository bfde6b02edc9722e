"""``python -m watersmeet.cli``: the same as ``watersmeet``."""

from watersmeet.cli.main import main

main()
