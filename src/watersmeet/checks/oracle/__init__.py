"""The definitions of all joins as loops over plain Python values: what every operator is checked against."""
