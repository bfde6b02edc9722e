"""What runs an operator: `live` over real sources and real time, `simulate` over a schedule and virtual time."""
