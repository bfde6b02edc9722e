"""Joins of endless streams by windows: one paper, one file."""
