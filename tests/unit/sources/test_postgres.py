"""Relations out of PostgreSQL: where a server is found; everything is skipped elsewhere.

`WATERSMEET_TEST_POSTGRES=postgresql://...` names a server that may be used. Without it a private one is started, if
PostgreSQL is installed. The drivers are part of the development environment: without one, tests fail.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

import watersmeet as wm
from servers.postgres import Postgres
from servers.process import Unavailable

DRIVERS = ("adbc", "psycopg", "sqlalchemy")
ROWS = 1_500


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a server with a table of customers."""
    named = os.environ.get("WATERSMEET_TEST_POSTGRES")
    if named:
        yield named
        return
    # Whom it runs as may not look into the folders of tests.
    with TemporaryDirectory(prefix="watersmeet-postgres-") as place:
        Path(place).chmod(0o711)
        try:
            server = Postgres(Path(place) / "server")
        except Unavailable as reason:
            pytest.skip(f"{reason}, and WATERSMEET_TEST_POSTGRES names none")
        yield server.address
        server.close()


def _connect(driver: str, address: str) -> Any:
    if driver == "adbc":
        return importlib.import_module("adbc_driver_postgresql.dbapi").connect(address)
    if driver == "psycopg":
        return importlib.import_module("psycopg").connect(address)
    sqlalchemy: Any = importlib.import_module("sqlalchemy")
    # Without a pool, closing a connection closes it.
    address = address.replace("postgresql:", "postgresql+psycopg:")
    return sqlalchemy.create_engine(address, poolclass=sqlalchemy.pool.NullPool).connect()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_relation_out_of_postgres(driver: str, postgres: str, tmp_path: Path) -> None:
    connection = _connect(driver, postgres)
    rows = f"SELECT i AS id, 'customer ' || i AS name, i / 2.0::float8 AS score FROM generate_series(1, {ROWS}) AS i"
    try:
        relation = wm.Relation.build(wm.query(connection, rows), on="id", path=tmp_path / "r", segment="16 KiB")
        with pytest.raises(wm.SourceError, match="the query cannot be run"):
            wm.query(connection, "SELECT * FROM nothing_of_this_name")
    finally:
        connection.close()
    assert relation.rows == ROWS and relation.partitions > 2
    stream = pa.table({"id": [7, ROWS, ROWS + 1]})
    found = wm.lookup_join(stream, relation, memory="1 MiB", how="left").table().sort_by("id").to_pylist()
    assert found[0] == {"id": 7, "name": "customer 7", "score": 3.5}
    assert found[1]["name"] == f"customer {ROWS}" and found[2]["name"] is None


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_table_with_nulls_and_what_changed_in_it(driver: str, postgres: str, tmp_path: Path) -> None:
    connection = _connect(driver, postgres)
    table = f"parts_{driver}"
    create = f"CREATE TABLE {table} AS SELECT i::int8 AS id, CASE WHEN i % 3 > 0 THEN 'part ' || i END AS name, "
    create += "date '2026-01-01' + i AS since FROM generate_series(1, 500) AS i"
    select = f"SELECT id, name, since FROM {table} WHERE id "
    try:
        _execute(connection, create)
        relation = wm.Relation.build(wm.query(connection, f"{select} <= 400"), on="id", path=tmp_path / "r")
        relation.upsert(wm.query(connection, f"{select} > 390"))
        stream = pa.table({"id": [*range(0, 600, 2)]})
        found = wm.lookup_join(stream, relation, memory="1 MiB").table().sort_by("id").to_pylist()
    finally:
        connection.close()
    assert [row["id"] for row in found] == [*range(2, 501, 2)]
    assert all(row["name"] == (f"part {row['id']}" if row["id"] % 3 else None) for row in found)
    assert all(row["since"] == date(2026, 1, 1) + timedelta(row["id"]) for row in found)


def _execute(connection: Any, statement: str) -> None:
    raw = getattr(connection, "connection", connection)
    raw = getattr(raw, "driver_connection", raw)
    with raw.cursor() as cursor:
        cursor.execute(statement)
    raw.commit()
