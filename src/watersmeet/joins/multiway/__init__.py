"""Joins of several inputs in one operator: one paper, one file."""
