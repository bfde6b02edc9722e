"""State on shared files: write-once, in versions, published whole."""
