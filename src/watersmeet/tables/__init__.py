"""Rows in memory: blocks of columns, and an index by hash, by range or by window."""
