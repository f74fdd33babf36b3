# make demo   create .venv, install, run the main job
# make test   create .venv, install, pass the tests
VENV := .venv
BIN := $(VENV)/bin
FAST := not slow and not gpu and not data

.PHONY: help demo test test-all test-oldest installed lint lists bench install clean

help:
	@sed -n 's/^# //p' Makefile
	@echo "make test-all   also the slow tests, and the oldest dependencies; make lint   ruff and mypy; make clean   remove .venv"

# The first interpreter that runs and is new enough; an old one is remembered for the message.
$(BIN)/python:
	@found=""; old=""; \
	for candidate in $(PYTHON) python3.12 python3.13 python3.14 python3 python \
	    "$${PYENV_ROOT:-$$HOME/.pyenv}"/versions/3.1[2-9]*/bin/python; do \
	  version=$$("$$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue; \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
	    found="$$candidate"; break; \
	  else old="$$old $$candidate=$$version"; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "sidebayes needs Python 3.12 or newer; found only:$${old:- no Python at all}." >&2; \
	  echo "Install 3.12 (e.g. 'pyenv install 3.12', 'uv python install 3.12' or your system's package)," >&2; \
	  echo "or name one: make PYTHON=/path/to/python3.12 demo" >&2; \
	  exit 1; \
	fi; \
	echo "creating $(VENV) with $$found ($$version)"; \
	"$$found" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "'$$found -m venv' failed; on Debian or Ubuntu install python$$version-venv first" >&2; exit 1; }

# uv takes a tenth of pip's time; where it is not to be had, or cannot read pip's settings, pip installs
# in its place, here and in .ci/installed.py
PIP := -m pip install --quiet --disable-pip-version-check
$(VENV)/.installed: pyproject.toml setup.py | $(BIN)/python
	{ $(BIN)/python $(PIP) --only-binary :all: uv && $(BIN)/uv pip install --quiet --python $(BIN)/python -e ".[dev]"; } \
	  || { rm -f $(BIN)/uv; $(BIN)/python $(PIP) -e ".[dev]"; }
	@touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/sidebayes demo

test: install
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "$(FAST)"

test-all: install test-oldest
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not gpu"

# make test-oldest   pass a part of the tests with the oldest versions that pyproject.toml allows
OLDEST := .venv-oldest
test-oldest: install
	$(BIN)/python -m venv --clear $(OLDEST)
	$(BIN)/python .ci/oldest.py > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python $(PIP) \
	  -c $(OLDEST)/constraints.txt -e ".[formulas,isomap,sampling,tables,test]"
	$(OLDEST)/bin/python -m pytest -p no:xdist -q -m "$(FAST)" \
	  -W ignore::DeprecationWarning tests/test_imports.py \
	  tests/front/command_line/test_optional.py tests/front/data/test_tables.py tests/front/data/test_design.py \
	  tests/front/results/test_fit.py tests/front/runs/test_record.py tests/front/data/test_names_and_words.py \
	  tests/diagnostics/pictures/test_report.py tests/diagnostics/test_tree.py

# make installed   check what pip installs, outside the checkout and without extras
installed: install
	$(BIN)/python .ci/installed.py

# make bench   measure every figure of speed that has a limit, and keep them in docs/bench.json
bench: install
	$(BIN)/python -m benchmarks.bench

# make lists   write the tables of methods, names and options in README and docs from cards and docstrings
lists: install
	$(BIN)/python .ci/lists.py
	$(BIN)/python .ci/reference.py

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(OLDEST)
