"""The join of docs/writing-a-join.md works as it is printed, and says what is printed below it."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "writing-a-join.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MOST_LINES = 110
"""About a hundred."""


def test_the_join_on_the_page_conforms_as_it_is_printed() -> None:
    names: dict[str, Any] = {"__name__": "writing_a_join"}
    said, blocks = "", BLOCK.findall(PAGE.read_text())
    for language, block in blocks:
        if language == "text":
            assert said == block
            continue
        with redirect_stdout(StringIO()) as out:
            exec(compile(block, str(PAGE), "exec"), names)
        said = out.getvalue()
    code = [line for language, block in blocks[:2] for line in block.splitlines() if language == "python" and line]
    assert [language for language, _ in blocks].count("text") == 3 and 90 < len(code) < MOST_LINES
