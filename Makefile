# One command for each developer task. Each sets up its prerequisites; the second time, that takes no time.
.NOTPARALLEL:
.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE # with cached bytecode, programs start several times as fast
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
BIN := .venv/bin
PYTEST_ARGS ?=
PROVIDER ?= local
FUZZ_ARGS ?=
IMAGE_ARGS ?=
AUDIT_ARGS ?=
SECONDS ?= 3600
VERSIONS ?= 1.36.3 1.37.2 1.35.4 1.34.4
ADVERSARY_ARGS ?=
SCENARIOS := tests/e2e/test_installed.py tests/e2e/test_examples.py $(wildcard tests/e2e/test_mig*.py)

.PHONY: help
help: ## Show this help
	@if [ -t 1 ] && [ -z "$${NO_COLOR:-}" ]; then bold=$$'\033[1;36m'; plain=$$'\033[0m'; else bold=; plain=; fi; \
	awk -v bold="$$bold" -v plain="$$plain" 'BEGIN { FS = ":.*## " } \
	  /^[a-z0-9-]+:.*## / { printf "  make %s%-18s%s %s\n", bold, $$1, plain, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make .venv, with the draco command in .venv/bin
	@scripts/setup

.PHONY: demo
demo: setup ## Show what Draco does, on a local Kubernetes with simulated GPUs
	@$(BIN)/draco demo

.PHONY: test
test: lint type ## Lint, check types and run all tests, up to whole clusters (PYTEST_ARGS=... for pytest)
	@scripts/test $(PYTEST_ARGS)

.PHONY: test-versions
test-versions: setup ## Run only the tests on other versions of Kubernetes (the first run builds their API servers)
	@DRACO_TEST_VERSIONS=others scripts/test $(PYTEST_ARGS)

.PHONY: unit
unit: setup ## Run only the fast tests (about a minute)
	@$(BIN)/python -m tests.oracle.programs
	@$(BIN)/python -m pytest tests/unit -m "not exhaustive" -n auto --durations=20 $(PYTEST_ARGS)

.PHONY: e2e
e2e: setup ## Run only the tests on a whole cluster (PROVIDER=kind for kind, IMAGE_ARGS as for make image)
	@DRACO_TEST_PROVIDER=$(PROVIDER) IMAGE_ARGS="$(IMAGE_ARGS)" scripts/test tests/e2e $(PYTEST_ARGS)

.PHONY: e2e-versions
e2e-versions: setup ## Run the e2e tests on simulated nodes with each supported Kubernetes (builds them once: many minutes)
	@for version in $(VERSIONS); do echo "Kubernetes $$version"; \
	  DRACO_TEST_KUBERNETES=$$version scripts/test tests/e2e --ignore tests/e2e/real_nodes $(PYTEST_ARGS); done

.PHONY: e2e-kind
e2e-kind: setup ## Run the core e2e tests on kind, installed as users do (IMAGE_ARGS="--base debian" if no registry answers)
	@DRACO_TEST_PROVIDER=kind IMAGE_ARGS="$(IMAGE_ARGS)" scripts/test tests/kind $(PYTEST_ARGS)
	@DRACO_TEST_PROVIDER=kind DRACO_TEST_WORKERS=2 IMAGE_ARGS="$(IMAGE_ARGS)" \
	  scripts/test $(SCENARIOS) tests/e2e/real_nodes $(PYTEST_ARGS)

.PHONY: e2e-scale
e2e-scale: setup ## Test Draco with Kueue and Karpenter (the first run builds them: a quarter of an hour)
	@$(BIN)/python scripts/programs.py
	@$(BIN)/python -m tests.scale.programs
	@$(BIN)/python -m pytest tests/scale --durations=20 $(PYTEST_ARGS)

.PHONY: image
image: setup ## Build the image of operator and agent (IMAGE_ARGS="--base debian" if no registry answers)
	@$(BIN)/python -m scripts.image $(IMAGE_ARGS)

.PHONY: image-reproducible
image-reproducible: setup ## Build the image twice, the second time without cache, and compare the layers
	@$(BIN)/python -m scripts.image_reproducible $(IMAGE_ARGS)

.PHONY: image-test
image-test: setup ## Test the image's contents; install one with simulated GPUs on real nodes with helm, and test that (root)
	@$(BIN)/python scripts/system_packages.py
	@$(BIN)/python scripts/system_packages.py --kind
	@$(BIN)/python scripts/programs.py --real-nodes=yes
	@$(BIN)/python scripts/programs.py --kind=yes
	@$(BIN)/python -m scripts.image $(IMAGE_ARGS)
	@$(BIN)/python -m scripts.image --target simulated --output build/simulated.tar $(IMAGE_ARGS)
	@$(BIN)/python -m pytest tests/image $(PYTEST_ARGS)
	@DRACO_TEST_FROM_IMAGE=yes $(BIN)/python -m pytest $(SCENARIOS) $(PYTEST_ARGS)

.PHONY: package
package: setup ## Check the chart with helm, and write it to build/
	@$(BIN)/python -m scripts.release package

.PHONY: release-check
release-check: setup ## Check that everything has the version of TAG, such as v1.2.3
	@$(BIN)/python -m scripts.release check "$${TAG:-}"

.PHONY: publish
publish: setup ## Push the image that `make image` built, and a chart that names it by digest (REGISTRY=ghcr.io/OWNER)
	@$(BIN)/python -m scripts.release publish "$${REGISTRY:-}"

.PHONY: rights
rights: setup ## Show which rights the chart grants, and which are unused or missing
	@scripts/test tests/component/chart/test_rights_used.py $(PYTEST_ARGS)

.PHONY: race
race: setup ## Allocate 20,000 claims with Draco and kube-scheduler side by side while the operator is killed
	@DRACO_RACE_CLAIMS=$${DRACO_RACE_CLAIMS:-20000} scripts/test tests/component/allocation/test_race.py -s

.PHONY: let-go
let-go: setup ## Start a gang 40 times while the pod and claim of its last GPU are deleted together
	@DRACO_LET_GO_ROUNDS=$${DRACO_LET_GO_ROUNDS:-40} scripts/test tests/component/gangs/test_let_go.py

.PHONY: bench
bench: setup ## Measure every performance figure, in one table
	@$(BIN)/python scripts/programs.py
	@$(BIN)/python -m tests.oracle.programs
	@$(BIN)/python -m benchmarks

.PHONY: fuzz
fuzz: setup ## Feed random texts to every parser (FUZZ_ARGS="--seconds 600" and names of targets)
	@$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

.PHONY: adversary
adversary: setup ## Chaos-test simulated nodes and whole clusters (SECONDS=3600 ADVERSARY_ARGS="--seed 7 cluster")
	@$(BIN)/python scripts/programs.py
	@$(BIN)/python -m tests.adversary --seconds $(SECONDS) $(ADVERSARY_ARGS)

.PHONY: audit
audit: setup ## Ask OSV for known vulnerabilities of locked packages (AUDIT_ARGS=--must-look to fail without an answer)
	@$(BIN)/python -m scripts.audit $(AUDIT_ARGS)

.PHONY: fmt
fmt: setup ## Format the code and sort imports
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

.PHONY: lint
lint: setup ## Check format, rules and import contracts
	@$(BIN)/ruff format --check --quiet . || { echo "Some files are not formatted: run 'make fmt'." >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/lint-imports --no-logo | grep -v -e '^$$' -e '^-*$$'

.PHONY: type
type: setup ## Check types
	@$(BIN)/mypy

.PHONY: docs
docs: setup ## Generate docs/reference and check every link
	@$(BIN)/python -m scripts.reference
	@$(BIN)/python scripts/check_links.py

.PHONY: chart
chart: setup ## Render manifests/install from the chart
	@$(BIN)/python -m scripts.render_manifests

.PHONY: proto
proto: setup ## Generate the message classes of kubelet's API from operator/draco/agent/plugin/proto
	@$(BIN)/python scripts/generate_protos.py

.PHONY: grammar
grammar: setup ## Generate the tables of the selectors' parser from operator/draco/cel/syntax/cel.lark
	@$(BIN)/python -m scripts.generate_grammar

.PHONY: lock
lock: setup ## Lock dependencies again after a change to pyproject.toml (LOCK_ARGS=--upgrade for the newest)
	@$(BIN)/python scripts/lock.py $(LOCK_ARGS)

.PHONY: verify
verify: ## Regenerate all generated files, check everything, and require a clean tree
	@$(MAKE) --no-print-directory proto lock grammar chart docs
	@scripts/clean_tree "generated files were not committed"
	@$(MAKE) --no-print-directory test
	@scripts/clean_tree "the tests left files behind"

.PHONY: clean
clean: ## Remove what was built in this folder (the cache of programs outside it stays)
	@rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
