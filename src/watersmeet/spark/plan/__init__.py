"""The plans of the verbs: Spark's own steps around one of ours."""
