"""Whether a stream is to be coloured: by what users say (NO_COLOR, FORCE_COLOR), else if it is a terminal.

What rich draws follows the same rules by itself.
"""

from __future__ import annotations

import os
from typing import TextIO

RED = "\x1b[1;31m"
PLAIN = "\x1b[0m"


def allowed(stream: TextIO) -> bool:
    """Whether colours are welcome: https://no-color.org says that any value but none at all means no."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def harmless(text: str) -> str:
    r"""Text of somebody's data, without what would move the cursor, change colours or turn the direction around.

    >>> harmless("a\x1b[2Jb")
    'a\ufffd[2Jb'
    """
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def red(text: str, stream: TextIO) -> str:
    """Text that warns.

    >>> import io
    >>> red("watersmeet:", io.StringIO())
    'watersmeet:'
    """
    return f"{RED}{text}{PLAIN}" if allowed(stream) else text
