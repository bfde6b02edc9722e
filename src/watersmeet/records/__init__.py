"""Rows as columns: keys and their hashes, types as they are kept, plans of what is kept, times, arenas."""
