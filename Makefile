PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# Extras of the package; more of them run more of the tests.
EXTRAS ?= dev
# Processes of the tests. Each takes about 1 GB.
WORKERS ?= 2
# Set up when the requirements have changed.
READY = $(VENV)/.ready

LOWEST = .venv-lowest/bin/python

.PHONY: demo docs test test-slow test-lowest lint bench dist clean

demo: $(READY)
	$(BIN)/python -m spacy project run demo project --vars.demo ../demo

# Into site/. A warning is an error: a link that leads nowhere, or a page in no menu.
docs: $(READY)
	$(BIN)/python -m mkdocs build --strict

# Lint runs beside the tests and prints after them. Both must pass.
test test-slow: $(READY)
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(MAKE) --no-print-directory lint >"$$log" 2>&1 & lint=$$!; \
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 20 \
		$(if $(filter test-slow,$@),-m "not forks"); tests=$$?; \
	wait $$lint; linted=$$?; cat "$$log"; \
	[ $$tests = 0 ] || echo "make $@: the tests failed"; \
	[ $$linted = 0 ] || echo "make $@: lint failed"; \
	[ $$tests = 0 ] && [ $$linted = 0 ]

test-lowest:
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST) -m pip install -q --prefer-binary -c constraints-lowest.txt \
		-e ".[demo,report,zst,search]" pytest pytest-xdist hypothesis psutil
	$(LOWEST) -m pip freeze
	$(LOWEST) -m pytest -n $(WORKERS) --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy spacy_elmo

bench: $(READY)
	$(BIN)/python benchmarks/embed.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/pretrain.py
	$(BIN)/python benchmarks/pretrain.py --shapes tiny small --precision float32 --scaling

# Into dist/: the source, a wheel of it for this machine, and one without compiled code for others.
dist: $(READY)
	$(BIN)/python -m pip install -q build twine
	rm -rf build dist
	$(BIN)/python -m build
	SPACY_ELMO_PURE=1 $(BIN)/python -m build --wheel
	$(BIN)/python -m twine check --strict dist/*

clean:
	rm -rf demo site build dist *.egg-info

$(READY): pyproject.toml setup.py constraints.txt $(wildcard spacy_elmo/kernels/*.[ch])
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[$(EXTRAS)]"
	touch $(READY)
