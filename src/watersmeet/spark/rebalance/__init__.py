"""Which task joins what: hot keys that are split; of a parallel join, groups that move, slots that come and go."""
