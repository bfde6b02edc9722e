"""What is fed to parsers: sound bytes, altered in a few places; or anything at all.

An alteration is drawn as numbers, so that Hypothesis can shrink what fails to the fewest and smallest of them. Content
with a checksum would be refused before a parser reads it: such targets mend the checksum after the alterations, as
somebody would who alters it on purpose.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

WORDS = (
    b"\0", b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"'", b'"', b"\\", b"\n", b"\r\n", b"..", b"/", b"../../x", b"-1",
    b"0", b"1e999", b"NaN", b"9" * 25, b"9" * 400, b"9" * 5000, b"[" * 3000, b"(" * 300, b"{", b"}", b"*",
    b"null", b"&a;",
    b"<!DOCTYPE a [<!ENTITY a 'b'>]>", b"<a>", b"</a>", b"%00", b"\xe2\x80\xae", b" and ", b" or ", b" not ", b"::",
    b"=",
)  # fmt: skip
"""What parsers stumble over."""

VALUES: Sequence[Any] = (
    None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 2**64, 10**30, 1.5, 1e308, "", "..", "../../x", "/etc/passwd",
    "x" * 300, [], {}, [[]], ["a"], {"a": 1}, [1, 2, 3],
)  # fmt: skip
"""In the place of a value of JSON."""

Edit = tuple[int, float, int]
edits = st.lists(
    st.tuples(st.integers(0, 5), st.floats(0, 1, exclude_max=True), st.integers(0, 1 << 16)), min_size=1, max_size=6
)


def altered(sound: bytes, changes: Sequence[Edit]) -> bytes:
    """Sound bytes after some alterations."""
    found = bytearray(sound)
    for kind, where, value in changes:
        at = int(where * (len(found) + 1))
        if kind == 0 and found:
            found[at % len(found)] ^= 1 << (value % 8)
        elif kind == 1:
            found[at : at + value % 64] = b""
        elif kind == 2:
            found[at:at] = WORDS[value % len(WORDS)]
        elif kind == 3:
            found[at : at + 1] = bytes([value % 256])
        elif kind == 4:
            found[at:at] = found[max(0, at - value % 200) : at]
        else:
            del found[at:]
    return bytes(found[: 1 << 20])


def mutations(*sound: bytes) -> st.SearchStrategy[bytes]:
    """One of these, altered; at times anything."""
    return st.one_of(st.builds(altered, st.sampled_from(sound), edits), st.binary(max_size=200), st.sampled_from(sound))


def texts(*sound: str) -> st.SearchStrategy[str]:
    """The same of text."""
    from_bytes: Callable[[bytes], str] = lambda found: found.decode(errors="replace")  # noqa: E731
    return st.one_of(
        mutations(*(each.encode() for each in sound)).map(from_bytes), st.text(max_size=40), st.sampled_from(sound)
    )


def changed_json(sound: Any, changes: Sequence[Edit]) -> Any:
    """A value of JSON in which some parts are others, are gone, or come twice."""
    found = json.loads(json.dumps(sound))
    for kind, where, value in changes:
        places = list(_places(found))
        if not places:
            return copy.deepcopy(VALUES[value % len(VALUES)])
        holder, key = places[int(where * len(places))]
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == 2 and isinstance(holder[key], int) and not isinstance(holder[key], bool):
            holder[key] += value % 7 - 3
        else:
            holder[key] = copy.deepcopy(VALUES[value % len(VALUES)])
    return found


def _places(found: Any) -> Any:
    """Every place of a value in another, as its holder and its key."""
    for key in list(found) if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ():
        yield found, key
        yield from _places(found[key])
