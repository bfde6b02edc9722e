"""The papers' choices, one small class each: arithmetic over statistics, without rows."""
