"""The public API is what was promised: names, signatures, commands and options do not change by accident."""

from __future__ import annotations

import difflib
import re

import public_api


def test_the_public_api_is_the_promised_one() -> None:
    promised, found = public_api.FILE.read_text().splitlines(), public_api.listing().splitlines()
    changes = list(difflib.unified_diff(promised, found, "promised", "found", lineterm="", n=0))
    assert not changes, f"{public_api.__doc__}\n" + "\n".join(changes)


def test_the_listing_has_verbs_methods_and_options_and_is_the_same_in_every_process() -> None:
    lines = public_api.listing().splitlines()
    verb = "watersmeet.join(left: 'object', right: 'object', on: 'On', *, how: 'str' = 'inner'"
    assert any(line.startswith(verb) for line in lines)
    assert any(line.startswith("watersmeet.spark.join(") for line in lines)
    assert "class watersmeet.errors.SpillError" in "\n".join(lines)
    assert any(line.strip().startswith("table(self") for line in lines), "methods of a result"
    assert "command watersmeet window-join" in lines and any("--memory" in line for line in lines)
    assert not re.search(r"0x[0-9a-f]{6}", "\n".join(lines)), "an address is another in every process"
