"""What a join remembers of the rows it has seen."""
