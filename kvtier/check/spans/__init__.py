"""From spans back to the spec: what an export says about each probe, and whether it may.

`checking` is what to call. Spans come out of the files in `reading` (`packed`: bytes,
`wire`: JSON), become rows in `rows`, are brought into order in `store`, and are judged
in `generation`, one generation of a probe at a time, and `judging`, what generations of
one key owe each other. `table` says what the lifecycle allows, once more and on its own:
nothing here may know the machine that is checked, nor what observes it.
"""
