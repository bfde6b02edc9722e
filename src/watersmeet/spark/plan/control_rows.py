"""What an input says about itself among its rows: that it has ended, is silent and still there, or what will not come.

An input that ends has a column `watersmeet_event`: NULL in an ordinary row, `"end"` in a row that says that this input
has ended, `"tick"` in one that is a sign of life, so that a micro-batch runs and the silence can be used. In rows
that are such signs, every other column is NULL.

A punctuation is a row with `"over"`: no row with its values follows, NULL standing for any. With `"over up to"`, none
follows whose key is at most its own, where there is one key. It counts from the end of its micro-batch on, for within
it rows have no order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as fn
from pyspark.sql import types as st

from watersmeet.core.errors import SpecError
from watersmeet.spark.io.source import END, EVENT, TICK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OVER = "over"
UP_TO = "over up to"
SIGN_CODES = {END: 1, TICK: 2, OVER: 3, UP_TO: 4}
"""How signs travel to the tasks; an ordinary row has 0."""


def has_signs(frame: DataFrame, name: str) -> bool:
    """Whether an input says when it ends; an error if its column of signs is no text."""
    found = [field for field in frame.schema.fields if field.name == EVENT]
    if found and (len(found) > 1 or not isinstance(found[0].dataType, st.StringType)):
        raise SpecError(f"{name} has a column {EVENT!r} that is not one of strings; see watersmeet.spark.with_events")
    return bool(found)


def signs_last(frame: DataFrame, *, keep: bool) -> DataFrame:
    """A frame whose column of signs is its last one; or, if it is not to be kept, its ordinary rows without it."""
    place = frame.columns.index(EVENT)
    numbered = frame.toDF(*(f"c{i}" for i in range(len(frame.columns))))  # names may repeat
    names = [name for i, name in enumerate(frame.columns) if i != place]
    others = [f"c{i}" for i in range(len(frame.columns)) if i != place]
    if keep:
        return numbered.select(*others, f"c{place}").toDF(*names, EVENT)
    return numbered.where(fn.col(f"c{place}").isNull()).select(*others).toDF(*names)


def sign_code(event: Column) -> Column:
    """The code of a row's sign; the query fails at a sign that there is not."""
    known = ", ".join(f"'{sign}'" for sign in SIGN_CODES)
    unknown = fn.concat(
        fn.lit(f"{EVENT} must be NULL or one of {known}, not '"), event, fn.lit("'; correct the source")
    )
    code = fn.when(event.isNull(), fn.lit(0))
    for sign, number in SIGN_CODES.items():
        code = code.when(event == fn.lit(sign), fn.lit(number))
    return code.otherwise(fn.raise_error(unknown)).cast("tinyint")


def with_events(frame: DataFrame, events: DataFrame) -> DataFrame:
    """An input for a progressive join out of any stream, and a second stream that says when the first one ends.

    `events` has one column of strings: `"end"` once the input has ended, `"tick"` now and then while it is silent. A
    directory of text files will do, into which somebody puts a file with the word `end` when all is written:

        orders = wms.with_events(
            spark.readStream.schema(schema).option("maxFilesPerTrigger", 4).parquet("orders/"),
            spark.readStream.text("orders-control/"),
        )

    The end must not come in an earlier micro-batch than the last rows, so put it there when these have been read.
    """
    if len(events.columns) != 1 or not isinstance(events.schema.fields[0].dataType, st.StringType):
        raise SpecError(
            f"events must have one column of strings, '{END}' or '{TICK}', not {events.schema.simpleString()}"
        )
    if EVENT in frame.columns:
        raise SpecError(f"the input has a column {EVENT!r} already")
    plain = frame.withColumn(EVENT, fn.lit(None).cast("string"))
    nothing = [fn.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    signs = events.toDF(EVENT).where(fn.col(EVENT).isNotNull()).select(*nothing, EVENT)
    return plain.union(signs)


def with_punctuations(frame: DataFrame, over: DataFrame, *, up_to: bool = False) -> DataFrame:
    """An input with punctuations, out of any stream, and a second one that says what will not come any more.

    `over` has some of the columns of `frame`: no row with these values follows, or with `up_to` none whose key is at
    most that. It counts from the end of the micro-batch that brings it:

        clicks = wms.with_punctuations(clicks, closed_sessions.select("session"))

    An input that has signs already keeps them.
    """
    columns = [field for field in frame.schema.fields if field.name != EVENT]
    names = [field.name for field in columns]
    for name in over.columns:
        if names.count(name) != 1:
            raise SpecError(
                f"a punctuation is about column {name!r}, which the input does not have, or not once; it has "
                f"{', '.join(names)}"
            )
    plain = frame if EVENT in frame.columns else frame.withColumn(EVENT, fn.lit(None).cast("string"))
    told = []
    for field in columns:
        value = fn.col(f"`{field.name}`") if field.name in over.columns else fn.lit(None)
        told.append(value.cast(field.dataType).alias(field.name))
    sign = fn.lit(UP_TO if up_to else OVER).alias(EVENT)
    return plain.select(*(f"`{name}`" for name in names), EVENT).union(over.select(*told, sign))
