"""What went wrong in a task or in Spark itself, as one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from watersmeet.core import errors
from watersmeet.core.errors import WatersmeetError

_OURS = re.compile(r"watersmeet\.core\.errors\.(\w+): (.+)")
_LONGEST = 300


@contextmanager
def in_plain_words(log: Path | None = None) -> Iterator[None]:
    """Raise what Spark raises as one of our errors; one that is Spark's own names the log, if there is one."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise explained(str(error), log) from error


def explained(text: str, log: Path | None = None) -> WatersmeetError:
    r"""An error of ours that lies within Spark's report of it, or one that says what Spark says.

    >>> explained("Job aborted ...\nTraceback ...\nwatersmeet.core.errors.SpecError: rows must be more than 0\n at ...")
    SpecError('rows must be more than 0')
    >>> explained("[WORKER_LOST] A worker is gone.\n\tat org.apache...", Path("spark.log"))
    WatersmeetError('Spark failed: [WORKER_LOST] A worker is gone.; more is in spark.log')
    """
    ours = _OURS.findall(text)
    if ours:
        name, said = ours[-1]
        kind = getattr(errors, name, WatersmeetError)
        return kind(said.strip()) if isinstance(kind, type) else WatersmeetError(said.strip())
    lines = [
        line.strip(" :\t") for line in text.splitlines() if line.strip() and not line.startswith("An error occurred")
    ]
    first = lines[0] if lines else "for a reason it does not tell"
    more = "" if log is None else f"; more is in {log}"
    return WatersmeetError(f"Spark failed: {first[:_LONGEST]}{more}")
