"""The verbs of the library on in-process data."""
