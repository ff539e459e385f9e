# `make demo` and `make test` need Python 3.11 or newer and nothing else: what they use is
# installed into .venv, once, and again when pyproject.toml or constraints.txt changes.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
DEMO := .build/demo

# Two at a time, and what is in one file on one after the other: files share what they set up.
TWO := -n 2 --dist loadfile

# pip: one way to call it. The build backend comes from constraints.txt like everything else,
# so it is installed beforehand instead of being fetched for each build.
PIP := -m pip --disable-pip-version-check install -qq
BACKEND := hatchling editables

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-slow bench docs spec wheel constraints clean FORCE

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## replay a built-in workload, check what its trace tells, draw it
	@mkdir -p $(DEMO)
	@$(BIN)/kvtier replay --concurrency 8 --spans $(DEMO)/spans.jsonl
	@echo
	@$(BIN)/kvtier validate $(DEMO)/spans.jsonl
	@echo
	@$(BIN)/kvtier timeline $(DEMO)/spans.jsonl -o $(DEMO)/timeline.html
	@echo 'spans: $(DEMO)/spans.jsonl'

test: $(READY) ## lint, types, all but the slow tests; unit and stateful tests again under -O
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pytest $(TWO) -m 'not slow'
	PYTHONOPTIMIZE=1 $(BIN)/pytest $(TWO) -m 'not slow' tests/unit tests/stateful

test-slow: $(READY) ## the slow tests
	$(BIN)/pytest -m slow --timeout=900

bench: $(READY) ## measure
	$(BIN)/python -m tests.bench

docs: $(READY) ## write the generated parts of docs/ anew
	$(BIN)/python docs/build.py

spec: $(READY) ## write the exported files of spec/ anew
	$(BIN)/python -m tests.port

wheel: $(READY) ## build the sdist and the wheel into dist/
	rm -rf dist
	$(BIN)/python -m hatchling build

constraints: ## pin the newest versions that fit pyproject.toml, of every extra, in constraints.txt
	rm -rf .build/constraints
	$(PYTHON) -m venv .build/constraints
	.build/constraints/bin/python $(PIP) $(BACKEND)
	extras=$$($(PYTHON) -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; print(*project["optional-dependencies"], sep=",")') \
	  && .build/constraints/bin/python $(PIP) --no-build-isolation ".[$$extras]"
	.build/constraints/bin/python -m pip freeze --exclude kvtier > .build/constraints.txt
	mv .build/constraints.txt constraints.txt

clean: ## remove everything that make made
	rm -rf .venv .build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find kvtier tests -name __pycache__ -prune -exec rm -rf {} +

# The last step writes the stamp, so a set-up that was interrupted is begun again. The stamp
# names this folder: a .venv that was moved or copied, or has lost its Python, is made anew.
ifneq ($(shell test -x $(BIN)/python && cat $(READY) 2>/dev/null),$(CURDIR))
$(READY): FORCE
endif
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'kvtier needs Python 3.11 or newer; name one: make PYTHON=python3.11'; exit 1; }
	@echo 'Setting up .venv'
	@rm -f $(READY)
	@rm -rf .venv
	@$(PYTHON) -m venv .venv
	@$(BIN)/python $(PIP) -c constraints.txt $(BACKEND)
	@$(BIN)/python $(PIP) -c constraints.txt --no-build-isolation -e '.[test]'
	@echo '$(CURDIR)' > $(READY)
