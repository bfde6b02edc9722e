"""The figures of the papers, in virtual time; run by `watersmeet reproduce`.

```
catalogue   the experiments by their ids, and what `watersmeet reproduce` does with them
model       what an experiment is: cells to run, claims about what they gave, panels to draw
pool        cells x seeds in a few processes
report      claims as a table, as JSON and as a page; panels as CSV and PNG
reasons     (a TOML file) why a claim does not hold, by experiment and claim
papers      the papers' constants
```

Each of the other modules is a group of figures, and ends in a list of experiments that `catalogue` names. To add one:

1. Write `measure(scale, seed, ...) -> Measured`: run the simulator, give back numbers and curves. The same scale and
   seed must give the same numbers on any machine. It must be a function of a module, as other processes call it.
2. Name the runs that a figure compares: `cells = {"rpj": Cell(measure, join="rpj"), ...}`. Cells that are equal are run
   once, whichever experiments they are in.
3. Say what the paper claims: `Claim(name, text, paper, check)`, where `check(results)` looks at medians over the seeds
   and answers `Verdict(holds, "what was measured")`.
4. Draw it: `panels(results)` gives what is plotted and written as CSV.
5. Put `Experiment(...)` into the module's list, and the list into `catalogue`. If a claim does not hold and you know
   why, say so in `reasons.toml`.
"""
