"""One paper, one file: every join as an operator, and the nested loops they are all measured against."""
