"""Versioned tables on disk that streams are looked up in."""
