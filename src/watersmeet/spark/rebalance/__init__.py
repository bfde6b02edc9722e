"""The parallel join: groups that move between tasks, slots that come and go, hot keys that are split."""
