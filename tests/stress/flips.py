"""One bit of a file that is another: where it is, what is made of it, and what came of it."""

from __future__ import annotations

import os
import random
import re
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from watersmeet.checks.run import ConformanceError
from watersmeet.core.errors import WatersmeetError

DETECTED, HARMLESS, BAD = "detected", "harmless", "BAD"
ENDS = 400
"""Bytes at both ends of a file, in which some of the flips are."""
_RUN, _SEGMENT, _BITS = b"watersmeet sorted run", b"watersmeet segment", b"wm.bits1"
_HEADER = 64
_TRAILERS = {_RUN: struct.Struct("<QQQI8s"), _SEGMENT: struct.Struct("<QQI8s"), _BITS: struct.Struct("<QI8s")}


@dataclass(frozen=True)
class Flip:
    """What came of one."""

    kind: str
    """Whose file it was, and which."""
    part: str
    """What was flipped in it."""
    outcome: str
    told: str


def form_of(content: bytes) -> str:
    """What a file is, by what it says of itself."""
    if content.startswith(_RUN):
        return "run"
    if content.startswith(_SEGMENT):
        return "segment"
    if content.endswith(_BITS):
        return "bitmap"
    return "JSON" if content.startswith(b"{") else "text"


def kind_of(name: str, content: bytes) -> str:
    """What is told apart in the table."""
    form = form_of(content)
    if form == "run":
        return "times of runs" if name.endswith("times") else "runs"
    if form == "segment" and "snapshot" in name:
        return "snapshots"
    if form == "segment" and name.startswith(("held", "results")):
        return "results that wait"
    return f"{form}s"


def parts(content: bytes) -> Mapping[str, range]:
    """Where what is in a file; of a run and a segment, the directory is what tells where its pages are.

    >>> parts(b'{"a":1}' + bytes([10]) + b'{"checksum":2}')
    {'text': range(0, 8), 'checksum': range(8, 22)}
    """
    form, size = form_of(content), len(content)
    if form == "bitmap":
        ends = size - _TRAILERS[_BITS].size
        return {"bits": range(ends), "trailer": range(ends, size)}
    if form in ("run", "segment"):
        trailer = _TRAILERS[_RUN if form == "run" else _SEGMENT]
        ends = size - trailer.size
        directory, description = trailer.unpack_from(content, ends)[:2]
        found = {"header": range(_HEADER), "rows": range(_HEADER, directory)}
        if form == "run":
            found |= {"page index": range(directory, description), "description": range(description, ends)}
        else:
            found |= {"page index": range(directory, ends)}
        return found | {"trailer": range(ends, size)}
    line = content.find(b"\n") + 1
    return {"text": range(line or size), "checksum": range(line or size, size)}


def place(draw: random.Random, content: bytes) -> int:
    """Which bit: anywhere, or in a part of the file however small it is, or near its ends."""
    size = len(content)
    anywhere, close = draw.randrange(size), draw.randrange(min(ENDS, size))
    within = draw.choice([each for each in parts(content).values() if each])
    at = draw.choice([anywhere, draw.choice(within), draw.choice(within), close, size - 1 - close])
    return 8 * at + draw.randrange(8)


def part_at(content: bytes, bit: int) -> str:
    """What a bit belongs to."""
    found = next(part for part, where in parts(content).items() if bit >> 3 in where)
    return f"{form_of(content)}: {found}"


def flipped(content: bytes, bit: int) -> bytes:
    """With one bit another."""
    altered = bytearray(content)
    altered[bit >> 3] ^= 1 << (bit & 7)
    return bytes(altered)


def judged(error: BaseException | None, name: str) -> tuple[str, str]:
    """What an error, or none, says of a flip in a file of this name."""
    if error is None:
        return HARMLESS, ""
    while isinstance(error, ConformanceError) and error.__cause__ is not None:
        error = error.__cause__
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, WatersmeetError):
        named = re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", str(error))
        return (DETECTED, said) if named else (BAD, f"{name} is not named: {said}")
    return BAD, f"{name}: {said}"


def of_a_directory(
    draw: random.Random, sound: Path, file: Path, kind: str, check: Callable[[Path], bool], at: Any = None
) -> Flip:
    """A flip in one file of a copy of a directory; all other files are the same ones."""
    with tempfile.TemporaryDirectory() as parent:
        where = Path(parent) / "copy"
        shutil.copytree(sound, where, copy_function=os.link)
        content = (where / file).read_bytes()
        bit = (at or place)(draw, content)
        (where / file).unlink()
        (where / file).write_bytes(flipped(content, bit))
        error: BaseException | None = None
        part = part_at(content, bit)
        try:
            if not check(where):
                return Flip(kind, part, BAD, f"{file}, bit {bit}: other results")
        except Exception as raised:
            error = raised
    outcome, told = judged(error, file.name)
    return Flip(kind, part, outcome, f"bit {bit}: {told}" if told else "")
