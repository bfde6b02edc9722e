"""As-of joins: each row with the nearest by time."""
