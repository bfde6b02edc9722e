"""The command line: files in, a file out; errors of one line; nothing left behind, whatever happens."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from waiting import PATIENCE, ended, until
from watersmeet.cli import main as cli
from watersmeet.cli import progress as cli_progress
from watersmeet.drivers.progress import Progress

COMMAND = [sys.executable, "-m", "watersmeet.cli.main"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two inputs and a place to spill, which is the current one."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": range(100), "name": [f"n{i}" for i in range(100)]}), "a.parquet")
    pyarrow.csv.write_csv(pa.table({"id": range(50, 150), "key": range(100), "name": ["x"] * 100}), "b.csv")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 this is none")
    (tmp_path / "late.csv").write_text("id,v\n" + "1,2\n" * 300_000 + "1,2,3\n")
    (tmp_path / "spill").mkdir()
    return tmp_path


def left_behind(here: Path) -> list[str]:
    """What a run should not leave: spilled files and unfinished output."""
    return [str(p.relative_to(here)) for p in [*(here / "spill").iterdir(), *here.glob(".*"), *here.glob("out*")]]


# -- what it does ------------------------------------------------------------------------------------------------------


def test_join_into_a_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["join", "a.parquet", "b.csv", "--on", "id", "--memory", "16MiB", "-o", "out.parquet"]) == 0
    table = pq.read_table("out.parquet")
    assert table.schema.names == ["id", "name", "key", "name_right"]
    assert sorted(table["id"].to_pylist()) == list(range(50, 100))
    output = capsys.readouterr()
    assert output.out == ""
    *progress, summary = output.err.splitlines()
    assert summary.startswith("50 rows from 100 + 100 in ")
    assert all(" rows in " in line for line in progress), "a slow machine sees some progress first"


@pytest.mark.parametrize(("how", "rows"), [("left", 100), ("right", 100), ("full", 150), ("semi", 50), ("anti", 50)])
def test_join_of_another_kind(how: str, rows: int, here: Path) -> None:
    assert cli.run(["join", "a.parquet", "b.csv", "--on", "id", "--how", how, "--quiet", "-o", "out.parquet"]) == 0
    table = pq.read_table("out.parquet")
    assert table.num_rows == rows
    assert table.schema.names == ["id", "name"] + ([] if how in ("semi", "anti") else ["key", "name_right"])
    assert table["id"].null_count == 0


def test_join_within_a_band(here: Path) -> None:
    assert cli.run(["join", "a.parquet", "b.csv", "--band", "id = key:1", "--quiet", "-o", "out.csv"]) == 0
    found = pyarrow.csv.read_csv("out.csv")
    assert found.num_rows == 298
    assert {abs(i - k) for i, k in zip(found["id"].to_pylist(), found["key"].to_pylist(), strict=True)} == {0, 1}


def test_join_of_points_that_are_near(here: Path) -> None:
    points = pa.table({"x": [0, 0, 10], "y": [0.0, 1.0, 0.0]})
    pq.write_table(points, "points.parquet")
    words = ["join", "points.parquet", "points.parquet", "--near", "x,y = y:1", "--quiet", "-o", "out.csv"]
    assert cli.run(words) == 0
    assert pyarrow.csv.read_csv("out.csv").num_rows == 5


def test_inputs_may_run_ahead_onto_the_disk(here: Path) -> None:
    words = ["join", "a.parquet", "b.csv", "--on", "id", "--spool", "1GiB", "--quiet", "--json", "figures.json"]
    assert cli.run([*words, "-o", "out.csv"]) == 0
    assert pyarrow.csv.read_csv("out.csv").num_rows == 50
    assert json.loads(Path("figures.json").read_text())["spool"]["room"] == 1 << 30


def test_join_on_two_columns_of_other_names(here: Path) -> None:
    on = ["--on", "id=key", "--on", "name = name"]
    assert cli.run(["join", "a.parquet", "b.csv", *on, "--quiet", "-o", "out.csv"]) == 0
    assert pyarrow.csv.read_csv("out.csv").num_rows == 0


def test_without_output_the_first_rows_are_shown_and_all_counted(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["join", "a.parquet", "b.csv", "--on", "id", "--quiet"]) == 0
    output = capsys.readouterr()
    assert "name_right" in output.out
    assert "50 rows, the first 20 shown" in output.out
    assert output.err == ""


def test_a_wide_table_fits_the_terminal(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    pq.write_table(pa.table({"id": [1], **{f"column_{i}": ["[red]" + "y" * 200] for i in range(12)}}), "wide.parquet")
    assert cli.run(["join", "wide.parquet", "a.parquet", "--on", "id", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 60
    assert any(line.startswith("more columns: column_5") for line in lines)
    assert any("[red" in line for line in lines)
    assert lines[-1] == "1 row"


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("watersmeet ")
    assert cli.run(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in ("join", "demo", "bench"))
    assert cli.run(["join", "--help"]) == 0
    assert "--memory" in capsys.readouterr().out


def test_the_arguments_of_other_commands_reach_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    from watersmeet.cli import bench

    seen = []

    class Module:
        add_arguments = staticmethod(bench.add_arguments)

        @staticmethod
        def main(args: object) -> int:
            seen.append(args)
            return 7

    monkeypatch.setitem(sys.modules, "watersmeet.demo", Module)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "watersmeet.cli.bench", Module)  # type: ignore[arg-type]
    assert cli.run(["demo", "--rows", "10", "--seed", "3", "--out", "d"]) == 7
    assert (seen[0].rows, seen[0].seed, seen[0].out, seen[0].memory) == (10, 3, "d", None)
    assert cli.run(["bench", "skew", "start", "--peers", "--json", "f.json"]) == 7
    assert (seen[1].names, seen[1].peers, seen[1].json, seen[1].list) == (["skew", "start"], True, "f.json", False)


def test_nothing_heavy_is_imported_before_the_arguments_are_understood() -> None:
    code = (
        "import sys; from watersmeet.cli import main; main.run(['join']); "
        "print([m for m in ('pyarrow', 'numpy', 'numba', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_kernels_are_not_imported_before_there_is_something_to_join() -> None:
    code = (
        "import sys; import watersmeet.cli.main, watersmeet.api.join, watersmeet.drivers.live; "
        "print([m for m in ('numba', 'llvmlite') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- errors ------------------------------------------------------------------------------------------------------------

JOIN = ["join", "a.parquet", "b.csv", "--on", "id", "--spill", "spill", "-o", "out.parquet", "--quiet"]


def changed(**change: str) -> list[str]:
    """The usual command line with some of its words replaced."""
    words = {"left": 1, "right": 2, "on": 4, "spill": 6, "output": 8}
    line = list(JOIN)
    for name, value in change.items():
        line[words[name]] = value
    return line


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ([], 2, "a command is missing"),
        (["jion"], 2, "invalid choice: 'jion'"),
        (["join", "a.parquet"], 2, "the following arguments are required: RIGHT"),
        (["join", "a.parquet", "b.csv"], 2, "the join needs a condition: --on COLUMN, --band COLUMN:WIDTH"),
        ([*JOIN, "--band", "id"], 2, "--band 'id' is not understood; write COLUMN:WIDTH"),
        ([*JOIN, "--on", "id", "--spool", "much"], 2, "spool 'much' is not understood"),
        ([*JOIN, "--on", "id", "--engine", "spark", "--spool", "1GiB"], 2, "--spool lets inputs run ahead in this"),
        ([*JOIN, "--near", "id"], 2, "--near 'id' is not understood; write COLUMNS:RADIUS"),
        ([*JOIN, "--near", "id:1"], 2, "near is of two or three dimensions, not of 1 columns"),
        ([*JOIN, "--near", "id,name:5s"], 2, "the radius of near must be a number, not"),
        ([*JOIN, "--near", "id,name:5"], 2, "near takes columns of numbers, and these are id int64, name string"),
        ([*JOIN, "--band", "id:wide"], 2, "width 'wide' is not understood"),
        ([*JOIN, "--band", "id:5s"], 2, "column 'id' of a.parquet (int64) cannot be within"),
        ([*JOIN, "--band", "id:1", "--algorithm", "xjoin"], 2, "xjoin joins on equal values only"),
        ([*JOIN, "--fast"], 2, "unrecognized arguments: --fast"),
        (changed(left="none.parquet"), 2, "none.parquet does not exist"),
        (changed(left="https://host/a.csv"), 2, "https://host/a.csv is an address, and only files are read by name"),
        (changed(left="no*.csv"), 2, "no*.csv"),
        (changed(left="broken.parquet"), 2, "broken.parquet cannot be read"),
        (changed(left="spill"), 2, "spill is a directory"),
        (changed(left="late.csv"), 2, "late.csv broke off after"),
        (changed(on="ident"), 2, "join column 'ident' is not in a.parquet; it has id, name"),
        (changed(on="name=id"), 2, "cannot be compared"),
        ([*JOIN, "--suffixes", "", ""], 2, "two columns named 'name'"),
        ([*JOIN, "--memory", "lots"], 2, "memory 'lots' is not understood"),
        ([*JOIN, "--memory", "1KiB"], 2, "memory of 1 KiB is too small"),
        ([*JOIN, "--how", "outer"], 2, "there is no how='outer'; choose inner, left, right, full, semi or anti"),
        ([*JOIN, "--how", "left", "--algorithm", "rpj"], 2, "rpj finds pairs, and cannot do how='left'"),
        ([*JOIN, "--algorithm", "bogo"], 2, "algorithm 'bogo' is not known; choose auto, or one of"),
        (changed(output="out.xlsx"), 2, "out.xlsx cannot be written; name it .parquet"),
        (changed(output="no/out.csv"), 2, "there is no folder"),
        (changed(spill="no/such"), 1, "no/such"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_error_is_one_line(
    line: list[str], code: int, says: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(line) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("watersmeet: ")
    assert output.err.count("\n") == 1
    assert says in output.err
    assert "Traceback" not in output.err
    assert left_behind(here) == []


def test_an_unexpected_error_is_one_line_and_debug_shows_where(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("no\nidea")

    monkeypatch.setattr("watersmeet.join", fail)
    assert cli.run(JOIN) == 1
    error = capsys.readouterr().err
    assert error == "watersmeet: unexpected RuntimeError: no idea; run again with --debug to see where\n"
    with pytest.raises(RuntimeError):
        cli.run([*JOIN, "--debug"])


def test_an_existing_output_survives_a_failure(here: Path) -> None:
    (here / "out.parquet").write_bytes(b"precious")
    assert cli.run(changed(left="late.csv")) == 2
    assert (here / "out.parquet").read_bytes() == b"precious"
    assert left_behind(here) == ["out.parquet"]


def test_a_real_process_says_one_line_too(here: Path) -> None:
    done = subprocess.run([*COMMAND, *changed(on="ident")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "watersmeet: join column 'ident' is not in a.parquet; it has id, name\n"


def test_a_reader_that_has_had_enough_is_no_error(here: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [*COMMAND, "join", "a.parquet", "b.csv", "--on", "id", "--quiet"],
        stdout=write,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 1


# -- signals -----------------------------------------------------------------------------------------------------------


STUCK = """
import sys, time
from watersmeet.api import run as opening
from watersmeet.cli import main as cli

def some_rows_and_then_nothing():
    yield from ({"id": i} for i in range(100))
    time.sleep(3600)

as_source = opening.as_source
opening.as_source = lambda data, name: as_source(some_rows_and_then_nothing() if data == "stuck" else data, name)
cli.main()
"""


@pytest.mark.parametrize("kind", ["silent", "busy"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_leaves_nothing_behind(kind: str, number: signal.Signals, code: int, here: Path) -> None:
    (here / "out.parquet").write_bytes(b"precious")
    if kind == "silent":
        command = [sys.executable, "-c", STUCK, *changed(left="stuck")]
    else:
        pq.write_table(pa.table({"id": [1] * 100_000}), "same.parquet")
        command = [*COMMAND, *changed(left="same.parquet", right="same.parquet")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: process.poll() is not None or len(left_behind(here)) == 3, "it has spilled and begun its output")
        assert process.poll() is None, process.communicate()
        assert len(left_behind(here)) == 3
        process.send_signal(number)
        output, error = ended(process, f"it was sent {number.name}")
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, output, error) == (code, "", "watersmeet: stopped\n")
    assert (here / "out.parquet").read_bytes() == b"precious"
    assert left_behind(here) == ["out.parquet"]


DEAF = """
import os, signal, time
from watersmeet.api import sinks

class Deaf:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)

check_target = sinks.check_target

def check_and_forget(path):
    Deaf()
    return check_target(path)

sinks.check_target = check_and_forget
"""


def test_a_signal_that_python_swallows_is_not_lost(here: Path) -> None:
    line = [sys.executable, "-c", DEAF + STUCK, *changed(left="stuck")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "watersmeet: stopped\n")
    assert left_behind(here) == []


LOSING = """
import os, signal, time
from watersmeet.api import sinks

check_target = sinks.check_target

def check_and_lose(path):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1)
    except BaseException:
        pass
    return check_target(path)

sinks.check_target = check_and_lose
"""


def test_a_signal_that_a_library_swallows_is_not_lost(here: Path) -> None:
    line = [sys.executable, "-c", LOSING + STUCK, *changed(left="stuck")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "watersmeet: stopped\n")
    assert left_behind(here) == []


# Python makes a RuntimeError of what is raised while a class is made.
DISGUISED = """
import os, signal
from watersmeet.api import sinks

class Named:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGTERM)

def check_and_make_a_class(path):
    class Owner:
        named = Named()

sinks.check_target = check_and_make_a_class
"""


def test_a_signal_that_becomes_another_error_is_a_stop(here: Path) -> None:
    line = [sys.executable, "-c", DISGUISED + STUCK, *changed(left="stuck")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "watersmeet: stopped\n")
    assert left_behind(here) == []


# While a module is compiled, Python works out constants, and forgets what is raised then. From the signal to that point
# no line of Python runs, at which the signal would be seen earlier.
COMPILING = """
import builtins, ctypes, functools, operator, pathlib, signal
from watersmeet.api import sinks
from watersmeet.cli import signals

signals.INSIST = 3600.0
compile_really = builtins.compile
check_target = sinks.check_target

def compile_and_be_stopped(*args, **options):
    stop = functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGTERM))
    compile_then = functools.partial(compile_really, *args, **options)
    return list(map(operator.call, [stop, compile_then]))[1]

def check_and_import(path):
    pathlib.Path("powers.py").write_text("MOST = 2**31")
    builtins.compile = compile_and_be_stopped
    try:
        import powers
    finally:
        builtins.compile = compile_really
    pathlib.Path("was-compiled").touch()
    return check_target(path)

sinks.check_target = check_and_import
"""


def test_a_signal_while_a_module_is_compiled_is_not_lost(here: Path) -> None:
    line = [sys.executable, "-c", COMPILING + STUCK, *changed(left="stuck")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "watersmeet: stopped\n")
    assert (here / "was-compiled").exists(), "the stop waited until that was over"
    assert left_behind(here) == []


# Two moments in llvmlite while kernels are loaded. An exception there ended the process by SIGSEGV or SIGABRT: what was
# being loaded was called as if it were there, and what had been freed was freed again.
IN_A_CALL_BACK = """
import os, signal, traceback
from watersmeet.cli import main as cli, signals
from llvmlite.binding.executionengine import ExecutionEngine

find = ExecutionEngine._find_module_ptr
signals.AGAIN = 1.0  # time enough to call what was not loaded
calls = []

def find_and_be_stopped(*args):
    if not calls and "unserialize_library" in [frame.name for frame in traceback.extract_stack()]:
        calls.append(args)
        os.kill(os.getpid(), signal.SIGTERM)
    return find(*args)

ExecutionEngine._find_module_ptr = find_and_be_stopped
"""
AFTER_FREEING = """
import os, signal
from llvmlite.binding import ffi

free = ffi.lib.LLVMPY_DisposeString
calls = []

def free_and_be_stopped(pointer):
    free(pointer)
    if pointer and not calls:
        calls.append(pointer)
        os.kill(os.getpid(), signal.SIGTERM)

ffi.lib._fntab["LLVMPY_DisposeString"] = free_and_be_stopped
"""


@pytest.mark.parametrize("moment", [IN_A_CALL_BACK, AFTER_FREEING], ids=["call back", "free"])
def test_a_signal_while_a_kernel_is_loaded_breaks_nothing(moment: str, here: Path) -> None:
    assert cli.run(["join", "a.parquet", "b.csv", "--on", "id", "--quiet"]) == 0, "now its kernels are in the cache"
    line = [sys.executable, "-c", moment + STUCK, *changed(left="stuck")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "watersmeet: stopped\n")
    assert left_behind(here) == []


# -- the display -------------------------------------------------------------------------------------------------------

MIDWAY = Progress(
    ("a.csv", "[b].csv"), (1200, 34), 56, 0.012, 3.0, 3 << 20, 6 << 20, 8 << 20, 1 << 20, 1 << 19, "reactive", "xjoin"
)


def test_the_panel_shows_all_that_matters() -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=open(os.devnull, "w"))  # noqa: PTH123, SIM115
    console.print(cli_progress.panel(MIDWAY))
    console.file.close()
    text = console.export_text()
    for part in ("1,200 rows of a.csv", "34 rows of [b].csv", "56 rows, the first after 12 ms", "3 MiB of 8 MiB"):
        assert part in text
    assert "1 MiB, 512 KiB on disk now" in text
    assert "reactive (xjoin), 3.0 s" in text
    bar = next(line for line in text.splitlines() if "memory" in line)
    assert (bar.count("█"), bar.count("▒"), bar.count("·")) == (11, 11, 8)


def test_a_terminal_gets_the_panel_and_keeps_the_summary() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with cli_progress.display(quiet=False, stream=stream) as show:
        show(MIDWAY)
        show.finish(MIDWAY)
    shown = stream.getvalue()
    assert "1,200 rows of a.csv" in shown
    last = shown.rstrip().splitlines()[-1]
    assert re.sub(r"\x1b\[\d*[A-Za-z]", "", last).startswith("56 rows from 1,200 + 34 in 3.0 s")


def test_a_log_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(cli_progress, "LINE_EVERY", 0.0)
    with cli_progress.display(quiet=False, stream=stream) as show:
        show(MIDWAY)
        show(MIDWAY)
        show.finish(MIDWAY)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0] == str(MIDWAY)
