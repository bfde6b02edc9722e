"""State of joins on Spark that no query is using: looked into, read, checked, and divided anew. Needs no Spark."""
