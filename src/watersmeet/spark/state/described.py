"""A join as JSON, in its state: what somebody needs to know who looks into the state without the query.

Columns stand there for people, and as Arrow writes schemas for machines. Whatever else a spec is made of, dataclasses
and plain values, is told by its fields, so that a spec which is read back is equal to the one that was written.

Where a query goes on with a state that was begun otherwise, `differences` tells what was changed, so that it can be
changed back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from watersmeet.core.asof import AsofSpec, AsofTimes
from watersmeet.core.errors import SnapshotError
from watersmeet.core.many_windows import ManyWindows
from watersmeet.core.multi_spec import Edge, MultiSpec
from watersmeet.core.promises import Promises
from watersmeet.core.spec import Band, Equal, JoinSpec, Near
from watersmeet.core.windows import Age, Landmark, Rows, WindowJoinSpec, WindowSpec
from watersmeet.spill.segment import schema_of, text_of

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Age, AsofTimes, Band, Edge, Equal, Landmark, ManyWindows, Near, Promises, Rows, WindowSpec)
}
_KIND = "is"
_SPECS: dict[str, type[JoinSpec]] = {
    "join": JoinSpec,
    "window_join": WindowJoinSpec,
    "parallel_join": WindowJoinSpec,
    "asof_join": AsofSpec,
}
_TOLD = ("on", "how", "suffixes", "promises", "window", "times", "edges", "preserved")
"""What a spec says beside its inputs."""


def described(verb: str, spec: Any, algorithm: str, options: Sequence[tuple[str, Any]] = ()) -> dict[str, Any]:
    """A join for its state."""
    inputs = [_input(name, spec.input(number)) for number, name in enumerate(spec.names)]
    told = {name: _packed(getattr(spec, name)) for name in _TOLD if hasattr(spec, name)}
    return {"verb": verb, "algorithm": algorithm, "inputs": inputs, "options": _packed(tuple(options)), **told}


def _input(name: str, schema: pa.Schema) -> dict[str, Any]:
    columns = [[field.name, str(field.type)] for field in schema]
    return {"name": name, "columns": columns, "schema": text_of(schema)}


def schemas_of(found: Mapping[str, Any]) -> list[pa.Schema]:
    """The inputs of a join that was described."""
    return [schema_of(each["schema"]) for each in found["inputs"]]


def spec_of(found: Mapping[str, Any]) -> JoinSpec:
    """The spec of a join of two inputs that was described.

    >>> from watersmeet.core.spec import parse_on
    >>> schema = pa.schema({"id": pa.int64()})
    >>> spec = JoinSpec(schema, schema, parse_on("id"))
    >>> spec_of(described("join", spec, "confluence")) == spec
    True
    """
    kind = _SPECS.get(found["verb"])
    if kind is None:
        raise SnapshotError(f"what wms.{found['verb']} keeps cannot be looked into: it is no join of two inputs")
    left, right = schemas_of(found)
    told = {name: _unpacked(found[name]) for name in _TOLD if name in found}
    return kind(left, right, names=tuple(each["name"] for each in found["inputs"]), **told)


def many_spec_of(found: Mapping[str, Any]) -> MultiSpec:
    """The spec of a join of several inputs that was described."""
    if "edges" not in found:
        raise SnapshotError(
            "the state does not tell what its join is on: an older version of Watersmeet has begun it, which did not "
            "write that down"
        )
    names = tuple(each["name"] for each in found["inputs"])
    told = {name: _unpacked(found[name]) for name in ("edges", "window", "preserved")}
    return MultiSpec(names, tuple(schemas_of(found)), **told)


def options_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the algorithm was told."""
    return dict(_unpacked(found["options"]))


def _packed(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_packed(each) for each in value]
    if isinstance(value, timedelta):
        return {_KIND: "timedelta", "value": [value.days, value.seconds, value.microseconds]}
    if isinstance(value, Decimal):
        return {_KIND: "decimal", "value": str(value)}
    if isinstance(value, date):
        return {_KIND: "datetime" if isinstance(value, datetime) else "date", "value": value.isoformat()}
    if is_dataclass(value):
        told = {field.name: _packed(getattr(value, field.name)) for field in fields(value)}
        return {_KIND: type(value).__name__, **told}
    return {_KIND: "text", "value": repr(value)}


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "timedelta": lambda value: timedelta(*value),
    "decimal": Decimal,
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "text": str,
}


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_unpacked(each) for each in value)
    if not isinstance(value, Mapping):
        return value
    name = value[_KIND]
    if name in _PLAIN:
        return _PLAIN[name](value["value"])
    if name not in _KINDS:
        raise SnapshotError(
            f"the state tells of a {name!r}, which this version of Watersmeet does not know; use the one that wrote it"
        )
    return _KINDS[name](**{field: _unpacked(each) for field, each in value.items() if field != _KIND})


_WORDS = {
    "on": "on=", "how": "how=", "suffixes": "suffixes=", "promises": "promises=", "window": "the windows",
    "times": "what is said of times", "options": "the algorithm's options", "edges": "on=", "preserved": "how=",
}  # fmt: skip


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was, as `described` tells of joins.

    >>> before = {"verb": "join", "how": "semi", "inputs": [{"name": "left", "columns": [["id", "int64"]]}]}
    >>> columns = [["id", "int32"], ["w", "bool"]]
    >>> now = {"verb": "join", "how": "inner", "inputs": [{"name": "left", "columns": columns}]}
    >>> differences(before, now)
    ["column 'id' of left was int64 and is int32", "column 'w' of left is new", 'how= differs']
    """
    if before["verb"] != now["verb"]:
        return [f"it was wms.{before['verb']} and is wms.{now['verb']}"]
    found = []
    if before.get("algorithm") != now.get("algorithm"):
        found.append(f"algorithm= was {before.get('algorithm')!r} and is {now.get('algorithm')!r}")
    if len(before["inputs"]) != len(now["inputs"]):
        return [*found, f"there were {len(before['inputs'])} inputs and are {len(now['inputs'])}"]
    for old, new in zip(before["inputs"], now["inputs"], strict=True):
        found += _columns(old, new)
    return found + [f"{word} differs" for name, word in _WORDS.items() if before.get(name) != now.get(name)]


def only_new_columns(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether inputs have more columns behind those that they had, and nothing else is different.

    >>> before = {"verb": "join", "how": "semi", "inputs": [{"name": "left", "columns": [["id", "int64"]]}]}
    >>> only_new_columns(before, {**before, "inputs": [{"name": "left", "columns": [["id", "int64"], ["w", "bool"]]}]})
    True
    >>> only_new_columns(before, {**before, "inputs": [{"name": "left", "columns": [["w", "bool"], ["id", "int64"]]}]})
    False
    """
    told = before["inputs"], now["inputs"]
    if len(told[0]) != len(told[1]) or {**before, "inputs": 0} != {**now, "inputs": 0}:
        return False
    return all(
        old["name"] == new["name"] and new["columns"][: len(old["columns"])] == old["columns"]
        for old, new in zip(*told, strict=True)
    )


def _columns(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    name = new["name"]
    had, has = dict(old["columns"]), dict(new["columns"])
    for column, type_ in old["columns"]:
        if column not in has:
            yield f"column {column!r} of {name} is gone"
        elif has[column] != type_:
            yield f"column {column!r} of {name} was {type_} and is {has[column]}"
    for column, _ in new["columns"]:
        if column not in had:
            yield f"column {column!r} of {name} is new"
    if set(had) == set(has) and list(had) != list(has):
        yield f"the columns of {name} are in another order"
