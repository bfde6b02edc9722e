"""Who meets whom: look-ups, the ledgers that decide whether a pair was emitted, and what was found."""
