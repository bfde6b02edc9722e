"""`python -m website [FOLDER]`: build the site, into `build/website` unless told."""

from __future__ import annotations

import sys
from pathlib import Path

from website.build import ROOT, build

if __name__ == "__main__":
    made = build(Path(sys.argv[1]).absolute() if len(sys.argv) > 1 else ROOT / "build" / "website")
    count = sum(1 for _ in made.rglob("*.html"))
    print(f"docs: {count} pages, all links lead somewhere; open {made / 'index.html'}")
