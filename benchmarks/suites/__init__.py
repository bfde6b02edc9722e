"""Benchmarks that others know, with their rivals in the same run; `watersmeet bench suite NAME --peers`.

```
model       a suite: its tables, its questions, where they are asked, and who answers
check       one number for all rows of a result, in any order
engines     how each rival is asked                   contestant   a process that answers one question, and tells how
run         turns, outcomes, what agrees with what    page         docs/benchmarks.md, of the figures in results/
```

The other modules are the suites. A rival that runs out of memory, fails or takes too long is a figure like others.
"""
