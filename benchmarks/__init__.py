"""Speed and memory on this machine, with and without peers; run by `watersmeet bench`.

```
catalogue   the benchmarks by name, and what `watersmeet bench` does with them
inputs      rows to join           ours, peer    the contestants
rounds      who runs when          figures       what was measured, against its target, as a table and as JSON
```

Each of the other modules is a benchmark or a few of a kind.
"""
