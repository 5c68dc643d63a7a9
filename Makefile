# Everything is made in $(VENV), in the compiled files beside the sources and in dist/.
#   make demo         build, install, run the main job
#   make test         build, install, run the tests
#   make foreign      install the clients from npm that tests/foreign runs
#   make lint         ruff, cython-lint, mypy, stubtest
#   make dist         an sdist, and a wheel built from it, both checked
#   make soak         an hour of mixed load, and 3 x 30,000 jobs with killed workers
#   make sanitize     a fuzz campaign on a build that checks addresses and undefined behaviour
#   make bench-check  every benchmark can be imported and called
#   make bench, make bench-site
#   make check        all that CI does
#   make clean

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
COMPILED := $(shell find qcore qclient -name '*.pyx' -o -name '*.pxd')
TYPED := $(shell find qcore qclient -name '*.pyi')
STUBBED := $(subst /,.,$(TYPED:.pyi=))
MACHINE ?= local
FOREIGN := tests/foreign/npm

.PHONY: setup demo test soak foreign sanitize lint dist bench-check bench bench-site check clean
.DELETE_ON_ERROR:

setup: $(VENV)/.installed

$(VENV)/.installed: $(COMPILED) setup.py pyproject.toml
	@$(PYTHON) .ci/preflight.py
	@echo "building in $(VENV): a few minutes the first time; log in $(VENV)/build.log"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -v -e '.[cli,test]' --config-settings editable_mode=compat \
		> $(VENV)/build.log 2>&1 || { tail -n 40 $(VENV)/build.log; exit 1; }
	@touch $@

$(VENV)/.tools: $(VENV)/.installed
	@echo "installing the tools for lint, dist and bench"
	@$(BIN)/python .ci/extras.py lint dist bench > $(VENV)/tools.txt
	@$(BIN)/python -m pip install --quiet -r $(VENV)/tools.txt 2> $(VENV)/tools.log || { cat $(VENV)/tools.log; exit 1; }
	@touch $@

demo: setup
	@$(BIN)/qcore demo

# Most tests wait for processes, disks and sockets: four at a time keep two cores busy. Files go out
# in the order of tests/conftest.py, the slow ones first, and not by their number of tests.
test: setup foreign
	@$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

soak: setup
	@$(BIN)/python -m tests.soak.kills
	@$(BIN)/python -m tests.soak.mixed

foreign: $(FOREIGN)/node_modules/.installed

# Where this does not work out, the tests that need it fail and say so; the others run.
$(FOREIGN)/node_modules/.installed: $(FOREIGN)/package.json $(FOREIGN)/package-lock.json
	@echo "installing clients from npm in $(FOREIGN)/node_modules"
	@cd $(FOREIGN) && { npm ci --no-audit --no-fund > npm.log 2>&1 && touch node_modules/.installed; } \
		|| { cat npm.log; echo "qcore: npm did not install bun and bunqueue; some tests will fail"; }

sanitize: setup
	@$(BIN)/python -m pip install --quiet 'setuptools>=77' 'Cython>=3.1,<4'
	@$(BIN)/python -m tests.fuzz.sanitized

lint: $(VENV)/.tools
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PATH="$(BIN):$$PATH" $(BIN)/cython-lint qcore qclient
	$(BIN)/mypy
	$(BIN)/python -m mypy.stubtest --allowlist .ci/stubtest-allowlist.txt --ignore-unused-allowlist $(STUBBED)

dist: $(VENV)/.tools
	@rm -rf dist build *.egg-info
	@mkdir dist
	@$(BIN)/python -m build --outdir dist . > dist/build.log 2>&1 || { tail -n 40 dist/build.log; exit 1; }
	@$(BIN)/python .ci/check_dist.py dist

bench-check: $(VENV)/.tools
	cd asv_bench && ../$(BIN)/asv machine --yes > /dev/null
	cd asv_bench && ../$(BIN)/asv check --environment existing:../$(BIN)/python

bench: $(VENV)/.tools
	cd asv_bench && ../$(BIN)/asv machine --machine $(MACHINE) --yes > /dev/null
	cd asv_bench && ../$(BIN)/asv run --machine $(MACHINE) 'HEAD^!'

bench-site: $(VENV)/.tools
	cd asv_bench && ../$(BIN)/asv publish
	@echo "the site is in .asv/html; serve it: cd asv_bench && ../$(BIN)/asv preview"

check:
	@bash .ci/run

clean:
	rm -rf $(VENV) $(FOREIGN)/node_modules .asv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find qcore qclient \( -name '*.so' -o -name '*.c' -o -name '*.html' \) -delete
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
