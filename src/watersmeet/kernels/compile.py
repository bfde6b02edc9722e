"""How every kernel is compiled, and where the machine code is kept between runs.

Compiling takes seconds, so the result is cached on disk, in the first of these that can be written:

1. `WATERSMEET_CACHE_DIR`, where it is set;
2. `NUMBA_CACHE_DIR`, where it is set;
3. `__pycache__` beside this file;
4. the user's cache directory;
5. a directory of the user's own under the system's temporary directory.

If there is none, kernels are compiled anew in each process. Below the chosen directory the code is kept under a
fingerprint of all kernel sources: Numba looks only at the file in which a function stands, and would go on using
machine code into which an older version of another file's function was inlined.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

import numba
from llvmlite import ir
from numba.core import types
from numba.core.caching import FunctionCache
from numba.core.errors import TypingError
from numba.core.runtime import rtsys
from numba.extending import intrinsic

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

CACHE_VARIABLE = "WATERSMEET_CACHE_DIR"

_Function = TypeVar("_Function", bound=Callable[..., Any])
_numba_config: Any = numba.config
_numba_config_lock = threading.Lock()
_saving = threading.Lock()


def kernel(function: _Function) -> _Function:
    """Compile a function that releases the interpreter lock, checks no bounds, and divides as NumPy does.

    >>> @kernel
    ... def total(values):
    ...     found = 0
    ...     for value in values:
    ...         found += value
    ...     return found
    >>> import numpy as np
    >>> total(np.arange(5))
    10
    """
    return _compiled(function)


def inlined(function: _Function) -> _Function:
    """Compile a function whose body is copied into every kernel that calls it.

    >>> @inlined
    ... def twice(value):
    ...     return 2 * value
    >>> twice(21)
    42
    """
    return _compiled(function, inline="always")


def _compiled(function: _Function, inline: Literal["never", "always"] = "never") -> _Function:
    compiler: Any = numba.njit(nogil=True, boundscheck=False, error_model="numpy", inline=inline)
    compiled: Any = compiler(function)
    # A body that is copied is kept with the kernels that it was copied into.
    if inline == "never" and os.path.exists(function.__code__.co_filename):
        directory = cache_directory()
        if directory is not None:
            compiled._cache = _KeptCode(function, directory)
    result: _Function = compiled
    return result


class _KeptCode:
    """A kernel's machine code on disk, in the place of Numba's own cache, which is asked at the kernel's first call.

    To prepare for that takes half a millisecond, and most processes call few of all kernels.

    A full disk, a vanished directory or a torn file costs the time to compile, and is never an error: what Numba raises
    then is whatever the file system or the unpickling of a torn file raises.

    Only one process saves at a time. Numba numbers the files of a function's versions by what it finds in an index: two
    processes that compile different versions at once could take the same number, and one version would be run in the
    other's place ever after.
    """

    def __init__(self, function: Callable[..., Any], directory: Path) -> None:
        self._function = function
        self._directory = directory
        self._numbas: Any = None

    def _opened(self) -> Any:
        if self._numbas is None:
            with _numba_caching_in(self._directory):
                self._numbas = FunctionCache(self._function)
        return self._numbas

    @property
    def cache_path(self) -> str:
        """Where the code is kept."""
        path: str = self._opened().cache_path
        return path

    def flush(self) -> None:
        """Forget all code that is kept."""
        self._opened().flush()

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The code for some types of arguments, or None if there is none.

        Numba's own `load_overload` first learns all that it can compile, a third of the time of a process's first join.
        Code that was compiled before needs nothing of that but the run-time system that arrays are allocated by: no
        kernel hashes Python's values or runs in Numba's threads, the two that bring symbols of their own.
        """
        with suppress(Exception):
            rtsys.initialize(context)
            kept = self._opened()
            load = getattr(kept, "_load_overload", kept.load_overload)  # a version without it takes the longer way
            return load(signature, context)
        return None

    def save_overload(self, signature: Any, code: Any) -> None:
        """Keep the code for some types of arguments, if that is possible."""
        with suppress(Exception), _alone_in(self._directory):
            self._opened().save_overload(signature, code)


@contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Wait until no other thread or process is in here; where files cannot be locked, go in all the same."""
    with _saving:
        if fcntl is None:
            yield
            return
        with open(directory / "lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def _numba_caching_in(directory: Path | None) -> Iterator[None]:
    """Numba reads its cache setting when a function is decorated: change it only for that moment."""
    with _numba_config_lock:
        before = _numba_config.CACHE_DIR
        _numba_config.CACHE_DIR = str(directory or before)
        try:
            yield
        finally:
            _numba_config.CACHE_DIR = before


@cache
def cache_directory() -> Path | None:
    """Where compiled code is kept, or None if no place can be written."""
    fingerprint = _fingerprint()
    for base in _candidates():
        directory = base / f"watersmeet-{fingerprint}"
        if _is_writable(directory):
            return directory
    private = _private_temporary()
    if private is not None and _is_writable(private / fingerprint):
        return private / fingerprint
    return None


def _candidates() -> Iterator[Path]:
    for chosen in (os.environ.get(CACHE_VARIABLE), _numba_config.CACHE_DIR):
        if chosen:
            yield Path(chosen).expanduser().absolute()
    yield Path(__file__).parent / "__pycache__"
    user_cache = _user_cache()
    if user_cache is not None:
        yield user_cache


def _user_cache() -> Path | None:
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    if os.path.isabs(os.environ.get(variable, "")):
        return Path(os.environ[variable]) / "watersmeet"
    try:
        home = Path.home()
    except RuntimeError:  # no home directory is known for this user
        return None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "watersmeet"


def _private_temporary() -> Path | None:
    """A temporary directory that only this user can write: cached code is run, so nobody else may plant it."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    try:
        directory = Path(tempfile.gettempdir()) / f"watersmeet-{user}"
        directory.mkdir(mode=0o700, exist_ok=True)
        found = directory.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode):
        return None
    if sys.platform != "win32" and (found.st_uid != user or found.st_mode & 0o022):
        return None
    return directory


def _is_writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def _fingerprint() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:
    if not (isinstance(array, types.Array) and array.ndim == 1 and array.layout == "C"):
        raise TypingError(f"prefetch takes a one-dimensional contiguous array, not {array}")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte_pointer = ir.IntType(8).as_pointer()
        address = builder.bitcast(builder.gep(view.data, [arguments[1]]), byte_pointer)
        flag = ir.IntType(32)
        instruction = builder.module.declare_intrinsic(
            "llvm.prefetch", [byte_pointer], ir.FunctionType(ir.VoidType(), [byte_pointer, flag, flag, flag])
        )
        for_reading, keep_in_all_caches, data = ir.Constant(flag, 0), ir.Constant(flag, 3), ir.Constant(flag, 1)
        builder.call(instruction, [address, for_reading, keep_in_all_caches, data])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


_declare: Any = intrinsic
prefetch: Callable[[Any, Any], None] = _declare(_prefetch)
"""`prefetch(array, index)`, inside a kernel: ask for the cache line of `array[index]`, which will be read soon.

The array is one-dimensional and contiguous. An index outside of it is harmless: nothing is read.
"""
