# `make demo` and `make test` need nothing but Python 3.11 or newer: they create .venv and install what they use.

VENV   := .venv
PY     := $(VENV)/bin/python
SOURCE := sdk ingest gpu_agent dashboards demo bench deploy tests
PIP    := PIP_DISABLE_PIP_VERSION_CHECK=1 $(PY) -m pip install --quiet
# The python3 on the path when it is new enough, else the newest that is. Each is tried: it must be able to make a virtual environment.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	$(name) -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))

.PHONY: help demo test test-server check bench live install collector up down
.DEFAULT_GOAL := help

help: ## what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo ## watch recorded streams being replayed, stored and summarised; ARGS="--help" says more
	@$(PY) -m demo $(ARGS)

test: $(VENV)/.installed-dev ## run every test; ARGS go to pytest
	@$(PY) -m pytest $(ARGS)

# Those that share one store, on a ClickHouse server: the one of CLICKHOUSE_URL, else its engine behind the same HTTP interface.
ON_SERVER := attribution/test_worker chunking/test_worker cli/test_causes cli/test_queries cli/test_slo jobs/test_self_monitoring otlp/test_engine_rows query/test_app query/test_sql_guard rollups/test_compute storage/test_retention storage/test_schema test_tenants write/test_app write/test_committer write/test_dedup

test-server: $(VENV)/.installed-dev ## the store's tests once more, with a ClickHouse server as the store
	@LEGATO_TEST_STORE=server $(PY) -m pytest $(ON_SERVER:%=tests/ingest/%.py) $(ARGS)

check: $(VENV)/.installed-dev ## lint, format and types
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(SOURCE)

bench: $(VENV)/.installed-dev ## run every bench; minutes each, see bench/README.md
	@for script in sdk wire storage ingest agent first_chart; do echo "== $$script"; $(PY) bench/$$script.py || exit 1; done

live: $(VENV)/.installed-dev ## a real vLLM beside Legato, VLLM=its environment; see bench/README.md; ARGS="--help" says more
	@$(PY) bench/live.py --vllm "$(VLLM)" $(ARGS)

collector: collector/dist/otelcol-legato ## build the Collector that collector/ configures; needs Go, three minutes the first time

up: ## ClickHouse, Collector, ingest and Grafana by docker compose; ARGS="--profile demo" adds a load
	@$(PYTHON) deploy/make_env.py
	docker compose $(ARGS) up --build --detach --wait

down: ## stop them; volumes stay
	docker compose --profile demo down

install: $(VENV)/.installed-dev ## create .venv with all that development needs

collector/dist/otelcol-legato: collector/builder.yaml
	@command -v go > /dev/null || { echo "the Collector is built with Go 1.25 or newer (on Debian: golang-go, from backports), which is not here"; exit 1; }
	cd collector && go run go.opentelemetry.io/collector/cmd/builder@v0.159.0 --config builder.yaml

$(PY):
	@test -n "$(PYTHON)" || { echo "Legato needs Python 3.11 or newer with the venv module (on Debian: python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# A stamp is older than the files that it was made from when they change: then, and only then, pip runs again.
$(VENV)/.installed-demo: requirements-demo.txt sdk/pyproject.toml ingest/pyproject.toml gpu_agent/pyproject.toml | $(PY)
	@echo "installing what the demo needs into $(VENV) (once; about a minute)"
	@$(PIP) -r requirements-demo.txt
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt requirements-demo.txt sdk/pyproject.toml ingest/pyproject.toml gpu_agent/pyproject.toml | $(PY)
	@echo "installing what development needs into $(VENV) (once; about a minute)"
	@$(PIP) -r requirements-dev.txt
	@touch $@ $(VENV)/.installed-demo
