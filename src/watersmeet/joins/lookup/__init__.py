"""Joins of a stream with a relation on disk: one paper, one file."""
