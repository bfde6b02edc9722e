"""What a query has changed about a join whose state was begun otherwise: told, so that it can be changed back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_WORDS = {
    "on": "on=", "how": "how=", "suffixes": "suffixes=", "promises": "promises=", "window": "the windows",
    "times": "what is said of times", "options": "the algorithm's options", "edges": "on=", "preserved": "how=",
}  # fmt: skip


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is not as it was, as `plan.described` tells of joins.

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
