"""The vocabulary every layer speaks: events, specs, operators, costs, errors."""
