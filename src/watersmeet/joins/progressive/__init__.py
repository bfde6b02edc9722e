"""Joins of two finite streams, and of inputs that promise something: one paper, one file."""
