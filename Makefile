# `make demo` and `make test` need only Python 3.11 or newer: they create .venv and install their dependencies.

VENV   := .venv
PY     := $(VENV)/bin/python
SOURCE := sdk ingest gpu_agent dashboards demo bench deploy tests
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet
# The first of these interpreters that is new enough and can create a virtual environment.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))

.PHONY: help demo test fuzz test-server check bench live install collector sbom audit up down
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## replay recorded streams, store them and print a report; ARGS="--help" lists the options
	@$(PY) -m demo $(ARGS)

# Tests run in this many processes: twice as many as two cores, because many tests wait for other processes. A file's tests stay together
# unless one process has none left (--dist worksteal). Tests marked `serial` run alone (tests/conftest.py).
WORKERS ?= 4
PYTEST  := $(PY) -m pytest -n $(WORKERS) --dist worksteal

test: $(VENV)/.installed-dev ## run every test; ARGS are passed to pytest
	@$(PYTEST) $(ARGS)

fuzz: $(VENV)/.installed-dev ## run the tests of Hypothesis with new and many examples, and the long variants of tests; takes an hour
	@$(PYTEST) --hypothesis-profile=fuzz $(ARGS)

# The tests of what can differ on a ClickHouse server: the one in CLICKHOUSE_URL, else chDB's engine behind the same HTTP interface.
# Inserts, deduplication, schema, retention and leases differ in transactions and DDL; self-monitoring, the rollups' computation, the
# attribution worker and the chunking worker in the types that they read and write; tenants in how filters are passed; `legato slo` is one
# reader. Not here: tests that open a store themselves, and those of HTTP, which use the store through the committer.
# storage/test_server.py, storage/test_backup.py and tests/e2e/test_shared_store.py always run on a server.
ON_SERVER := write/test_committer write/test_dedup write/test_group_insert storage/test_schema storage/test_retention jobs/test_leases \
	jobs/test_self_monitoring rollups/test_compute attribution/test_worker chunking/test_worker otlp/test_engine_rows test_objectives test_tenants cli/test_slo

test-server: $(VENV)/.installed-dev ## run the tests of the store with a ClickHouse server as the store
	@LEGATO_TEST_STORE=server $(PYTEST) $(ON_SERVER:%=tests/ingest/%.py) $(ARGS)

check: $(VENV)/.installed-dev ## check lint, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(SOURCE)

bench: $(VENV)/.installed-dev ## run the benchmarks; minutes each, see bench/README.md
	@for script in sdk wire storage ingest agent fidelity first_chart; do echo "== $$script"; $(PY) bench/$$script.py || exit 1; done

live: $(VENV)/.installed-dev ## compare Legato with a real vLLM, VLLM=virtual environment of vLLM; see bench/README.md; ARGS="--help" lists the options
	@$(PY) bench/live.py --vllm "$(VLLM)" $(ARGS)

collector: collector/dist/otelcol-legato ## build the Collector for the configurations in collector/; needs Go, three minutes the first time

# What a user installs, and the tools that look at it.
AUDITED := .build/audit/installed
AUDIT   := .build/audit/tools
$(AUDIT)/.installed: requirements-audit.txt requirements-demo.txt sdk/pyproject.toml ingest/pyproject.toml gpu_agent/pyproject.toml
	@test -n "$(PYTHON)" || { echo "no suitable python3 found: Legato needs Python 3.11 or newer with the venv module"; exit 1; }
	@rm -rf .build/audit && $(PYTHON) -m venv $(AUDITED) && $(PYTHON) -m venv $(AUDIT)
	@grep == requirements-demo.txt > .build/audit/pins.txt
	@$(AUDITED)/bin/pip install --quiet --disable-pip-version-check -c .build/audit/pins.txt ./sdk[otlp] ./ingest[chdb,grafana] ./gpu_agent[agent]
	@$(AUDIT)/bin/pip install --quiet --disable-pip-version-check -r requirements-audit.txt
	@touch $@

sbom: $(AUDIT)/.installed ## write the bill of materials of an installation to .build/sbom.json (CycloneDX)
	@$(AUDIT)/bin/cyclonedx-py environment $(AUDITED)/bin/python --output-format JSON --output-file .build/sbom.json
	@$(PY) -c "import json; found = json.load(open('.build/sbom.json')); print(len(found['components']), 'components are listed in .build/sbom.json')"

audit: $(AUDIT)/.installed ## look up known vulnerabilities of what an installation contains; needs access to PyPI
	@$(AUDITED)/bin/pip freeze --exclude legato --exclude legato-ingest --exclude legato-gpu-agent > .build/audit/installed.txt
	@$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip --progress-spinner off -r .build/audit/installed.txt

up: ## start ClickHouse, Collector, ingest and Grafana with docker compose; ARGS="--profile demo" adds a load
	@$(PYTHON) deploy/make_env.py
	docker compose $(ARGS) up --build --detach --wait

down: ## stop the services of `make up`; volumes stay
	docker compose --profile demo down

install: $(VENV)/.installed-dev ## create .venv with all development dependencies

collector/dist/otelcol-legato: collector/builder.yaml
	@command -v go > /dev/null || { echo "no 'go' command found: building the Collector needs Go 1.25 or newer; install it (on Debian: golang-go, from backports)"; exit 1; }
	cd collector && go run go.opentelemetry.io/collector/cmd/builder@v0.159.0 --config builder.yaml

$(PY):
	@test -n "$(PYTHON)" || { echo "no suitable python3 found: Legato needs Python 3.11 or newer with the venv module; install it (on Debian: python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamp files record the last installation: pip runs again only when one of these requirement files has changed.
$(VENV)/.installed-demo: requirements-demo.txt sdk/pyproject.toml ingest/pyproject.toml gpu_agent/pyproject.toml | $(PY)
	@echo "installing the dependencies of the demo into $(VENV) (once; about a minute)"
	@$(PIP) -r requirements-demo.txt
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-demo.txt sdk/pyproject.toml ingest/pyproject.toml gpu_agent/pyproject.toml | $(PY)
	@echo "installing the development dependencies into $(VENV) (once; about a minute)"
	@$(PIP) -r requirements-dev.txt
	@touch $@ $(VENV)/.installed-demo
