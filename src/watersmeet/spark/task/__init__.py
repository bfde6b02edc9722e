"""What runs in a Spark task: a group's rows of one micro-batch in, its results out, its state a version further."""
