from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watersmeet.kernels import compile as compiling
from watersmeet.kernels import hashing

ALL = 2**64 - 1
MULTIPLIER, COMBINER = 0xD6E8FEB86659FD93, 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    """The mixer again, in unbounded integers."""
    word = (word + COMBINER) & ALL
    word ^= word >> 32
    word = word * MULTIPLIER & ALL
    word ^= word >> 32
    word = word * MULTIPLIER & ALL
    return word ^ word >> 32


def unmix(word: int) -> int:
    inverse = pow(MULTIPLIER, -1, 2**64)
    word ^= word >> 32
    word = word * inverse & ALL
    word ^= word >> 32
    word = word * inverse & ALL
    word ^= word >> 32
    return (word - COMBINER) & ALL


def hash_words(words: list[int], dtype: Any = np.int64) -> list[int]:
    hashes = np.empty(len(words), np.uint64)
    hashing.hash_words(np.array(words, dtype), hashes)
    return [int(found) for found in hashes]


def hash_strings(strings: list[bytes], dtype: Any = np.int32, padding: bytes = b"") -> np.ndarray:
    offsets = np.cumsum([len(padding), *map(len, strings)], dtype=dtype)
    data = np.frombuffer(padding + b"".join(strings) + padding, np.uint8)
    hashes = np.empty(len(strings), np.uint64)
    hashing.hash_bytes(offsets, data, hashes)
    return hashes


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_the_mixer_loses_nothing(words: list[int]) -> None:
    hashes = hash_words(words)
    assert hashes == [mix(word & ALL) for word in words]
    assert [unmix(found) for found in hashes] == [word & ALL for word in words]


def test_words_of_any_width_hash_by_value() -> None:
    assert hash_words([-1, 0, 7], np.int32) == hash_words([-1, 0, 7]) == hash_words([-1, 0, 7], np.int8)


def test_hashes_are_part_of_the_format() -> None:
    """These values are in files: a change here makes every spilled segment and every saved state unreadable."""
    assert hash_words([0, 1, -1, 2**62]) == GOLDEN_WORDS
    for dtype in (np.int32, np.int64):
        assert [int(found) for found in hash_strings(GOLDEN_STRINGS, dtype)] == GOLDEN_HASHES
    doubles = np.array([0.0, -0.0, 1.5, np.nan, -np.nan])
    hashes = np.empty(5, np.uint64)
    hashing.hash_doubles(doubles, doubles.view(np.uint64), hashes)
    assert hashes.tolist() == GOLDEN_DOUBLES
    pair = np.array(hash_words([1]), np.uint64)
    hashing.combine(pair, np.array(hash_words([2]), np.uint64))
    assert pair.tolist() == GOLDEN_PAIR


GOLDEN_STRINGS = [
    b"",
    b"a",
    b"ab",
    b"abc",
    b"abcd",
    b"abcdefg",
    b"abcdefgh",
    b"x" * 15,
    b"x" * 16,
    b"x" * 17,
    b"y" * 52,
]
GOLDEN_WORDS = [5627194300713089401, 7551226805739869723, 17825859991557418324, 4953970089860256699]
GOLDEN_HASHES = [
    4489295304081045100,
    16278570859536162608,
    8114509965519455377,
    8216543162485390957,
    17153001426174992867,
    15684234901338111645,
    503839022621856455,
    11185504183765877786,
    11256058094081914005,
    17987207148832801750,
    12997376273888505715,
]
GOLDEN_DOUBLES = [
    5627194300713089401,
    5627194300713089401,
    16504380223549281316,
    3561159671434317113,
    3561159671434317113,
]
GOLDEN_PAIR = [15440808001659720790]


@pytest.mark.parametrize("length", range(70))
def test_a_string_hashes_alike_wherever_it_stands(length: int) -> None:
    """Neither the bytes around it nor its alignment play a part."""
    text = bytes(range(1, length + 1))
    (alone,) = hash_strings([text])
    for padding in (b"\0", b"\xff" * 3, b"qwertyuiop" * 3):
        assert hash_strings([text], padding=padding)[0] == alone
    changed = [text[:i] + bytes([text[i] ^ 128]) + text[i + 1 :] for i in range(length)]
    others = [*changed, text + b"\0", text[:-1]] if length else [text + b"\0"]
    assert alone not in hash_strings(others)
    assert len(set(hash_strings(changed).tolist())) == length


def test_no_collisions_among_many_similar_strings() -> None:
    strings = [f"{i:09d}".encode() for i in range(200_000)] + [b"k" * 40 + str(i).encode() for i in range(200_000)]
    hashes = hash_strings(strings)
    assert len(np.unique(hashes)) == len(strings)


@pytest.mark.parametrize("kind", ["words", "strings", "pairs"])
def test_every_bit_of_a_hash_is_a_fair_coin(kind: str) -> None:
    count = 100_000
    if kind == "strings":
        hashes = hash_strings([str(i).encode() for i in range(count)])
    else:
        hashes = np.array(hash_words(list(range(count))), np.uint64)
        if kind == "pairs":
            hashing.combine(hashes, np.full(count, hash_words([3])[0], np.uint64))
    bits = np.unpackbits(hashes.view(np.uint8).reshape(-1, 8), axis=1)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.01
    for part in (hashes >> np.uint64(54), hashes & np.uint64(1023)):
        sizes = np.bincount(part.astype(np.int64), minlength=1024)
        expected = count / 1024
        assert ((sizes - expected) ** 2 / expected).sum() < 1023 + 6 * np.sqrt(2 * 1023)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(-(2**255), 2**255 - 1)
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([-(2**63), 2**63, -(2**127), 0]),
    st.integers(0, 80),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.booleans(),
)
def test_wide_integers_shrink_only_where_nothing_is_lost(
    value: int, power: int, narrow: int, unsigned: bool, divisible: bool
) -> None:
    if divisible and abs(value * 10**power) < 2**255:
        value *= 10**power
    words = np.frombuffer(value.to_bytes(32, "little", signed=True), np.uint64).reshape(1, 4)
    shrunk, fits = np.empty((1, narrow), np.uint64), np.empty(1, np.bool_)
    hashing.shrink_integers(words, power, unsigned, shrunk, fits)
    quotient, rest = divmod(value, 10**power)
    low, high = (0, 2 ** (64 * narrow)) if unsigned else (-(2 ** (64 * narrow - 1)), 2 ** (64 * narrow - 1))
    assert bool(fits[0]) == (rest == 0 and low <= quotient < high)
    assert int.from_bytes(shrunk.tobytes(), "little", signed=not unsigned) == (quotient if fits[0] else 0)


PROBE = """
import json, sys, tempfile
tempfile.tempdir = sys.argv[1]
import numpy, numba
from watersmeet.kernels import compile as compiling, hashing
{before}
hashes = numpy.empty(1, numpy.uint64)
hashing.hash_words(numpy.array([1]), hashes)
print(json.dumps({{
    "directory": str(compiling.cache_directory()),
    "hits": sum(hashing.hash_words.stats.cache_hits.values()),
    "numba": numba.config.CACHE_DIR,
    "hash": int(hashes[0]),
}}))
"""


class Install:
    """A copy of the kernels in a place of its own, with everything that decides where compiled code is kept."""

    def __init__(self, root: Path) -> None:
        self.kernels = root / "site" / "watersmeet" / "kernels"
        source = Path(compiling.__file__).parent
        shutil.copytree(source, self.kernels, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(source.parent / "core", self.kernels.parent / "core")  # kernels name the types of arrays
        (self.kernels.parent / "__init__.py").touch()
        self.home, self.temporary = root / "home", root / "tmp"
        self.home.mkdir()
        self.temporary.mkdir()
        self.variables = {"HOME": str(self.home), "PYTHONPATH": str(root / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
        self.prefix: list[str] = []

    def block(self, place: Path) -> None:
        """Make it impossible to write below a place, for the superuser too: it is a file."""
        if place.is_dir():
            place.rmdir()
        place.write_text("")

    def run(self, before: str = "") -> dict[str, Any]:
        done = subprocess.run(
            [*self.prefix, sys.executable, "-W", "error", "-c", PROBE.format(before=before), str(self.temporary)],
            env={"PATH": os.environ["PATH"], **self.variables},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        assert found["hash"] == mix(1)
        return found

    def check_cached_below(self, place: Path) -> None:
        first, second = self.run(), self.run()
        assert Path(first["directory"]).is_relative_to(place)
        assert first["hits"] == 0
        assert second["hits"] == 1
        assert first["numba"] == self.variables.get("NUMBA_CACHE_DIR", "")


@pytest.fixture
def install(tmp_path: Path) -> Install:
    return Install(tmp_path)


def test_compiled_code_is_kept_beside_the_sources(install: Install) -> None:
    install.check_cached_below(install.kernels / "__pycache__")


def test_a_changed_source_is_compiled_anew(install: Install) -> None:
    before = install.run()
    (install.kernels / "another.py").write_text("CHANGED = True\n")
    after = install.run()
    assert after["directory"] != before["directory"]
    assert after["hits"] == 0


def test_read_only_install_keeps_it_in_the_users_cache(install: Install) -> None:
    install.block(install.kernels / "__pycache__")
    install.check_cached_below(install.home / (".cache" if sys.platform == "linux" else "Library"))


def test_read_only_home_keeps_it_in_a_private_temporary_directory(install: Install) -> None:
    install.block(install.kernels / "__pycache__")
    install.block(install.home)
    install.check_cached_below(install.temporary / f"watersmeet-{os.getuid()}")


@pytest.mark.parametrize("variable", ["WATERSMEET_CACHE_DIR", "NUMBA_CACHE_DIR"])
def test_the_chosen_directory_is_taken_and_numbas_setting_kept(install: Install, tmp_path: Path, variable: str) -> None:
    install.variables[variable] = str(tmp_path / "chosen")
    install.check_cached_below(tmp_path / "chosen")


def test_no_place_to_cache_is_no_error(install: Install) -> None:
    for place in (install.kernels / "__pycache__", install.home, install.temporary):
        install.block(place)
    assert [install.run()[key] for key in ("directory", "hits")] == ["None", 0]


def test_a_cache_that_breaks_is_no_error(install: Install) -> None:
    spoil = "import shutil; place = compiling.cache_directory(); shutil.rmtree(place); place.write_text('')"
    assert install.run(before=spoil)["hits"] == 0


def test_a_torn_cache_file_is_no_error(install: Install) -> None:
    directory = Path(install.run()["directory"])
    torn = [file for file in directory.rglob("*hash_words*") if file.suffix in (".nbi", ".nbc")]
    assert len(torn) == 2
    for file in torn:
        file.write_bytes(file.read_bytes()[:20])
    assert install.run()["hits"] == 0


def test_real_permissions_are_respected(install: Install) -> None:
    """The same without tricks: directories that this user may not write."""
    if os.getuid() == 0:  # whom permissions do not bind, unless that privilege is given up
        give_up = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
        if shutil.which("setpriv") is None or subprocess.run([*give_up, "true"], check=False).returncode != 0:
            pytest.skip("the superuser cannot give up writing everywhere on this system")
        install.prefix = give_up
    for place in (install.kernels, install.home):
        place.chmod(0o555)
    install.check_cached_below(install.temporary)
    assert not (install.kernels / "__pycache__").exists()


def test_a_temporary_directory_that_others_can_write_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    private = compiling._private_temporary()
    assert private is not None
    assert private.stat().st_mode & 0o077 == 0
    private.chmod(0o777)
    assert compiling._private_temporary() is None
    private.rmdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    private.symlink_to(elsewhere)
    assert compiling._private_temporary() is None


def test_prefetch_changes_nothing_and_refuses_what_it_cannot_reach() -> None:
    @compiling.kernel
    def total(values: Any) -> Any:
        found = 0
        for i in range(values.shape[0]):
            compiling.prefetch(values, i + 16)
            found += values[i]
        return found

    assert total(np.arange(100)) == 4950
    with pytest.raises(numba.TypingError, match="one-dimensional contiguous"):
        total(np.arange(100)[::2])
