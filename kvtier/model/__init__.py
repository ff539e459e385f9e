"""The lookup machine as an executable model: immutable values, pure functions.

* `state.py`: what a state is.
* `actions.py`: what can happen (`Machine`).
* `invariants.py`: what must always hold.
* `mutants.py`: machines with known bugs.
* `explore.py`: all of it, state by state.
"""
