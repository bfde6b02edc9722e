"""The operator's shell, and what the papers' joins are put together from: arrival, pipelines, loops, snapshots."""
