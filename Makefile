# Every target works on a fresh clone: it makes .venv and installs what it needs. An interpreter that already has
# torch (make PYTHON=/path/to/python demo) lends it to .venv, and no other torch is installed.
PYTHON ?= python3
BIN := .venv/bin
TORCH := $(shell $(PYTHON) -c "import torch; assert tuple(map(int, torch.__version__.split('.')[:2])) >= (2, 11)" \
	2>/dev/null && echo yes)
# All versions are those of requirements.lock. torch and what it alone needs are not in it, but for torch itself where
# the interpreter lends none.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PIP := $(INSTALL) --constraint requirements.lock $(if $(TORCH),,--constraint constraints.txt)
CPU_TORCH := --no-deps --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu torch
# What builds our own packages is installed from the lock too, so their builds download nothing.
BUILD_TOOLS := hatchling editables scikit-build-core nanobind
PYTEST := $(BIN)/python -m pytest
WORKERS := --numprocesses logical --maxprocesses 8

.PHONY: demo test test-newest test-lowest test-slow test-extras test-triton triton-law test-clients gpu gpu-tests gpu-replay real real-models \
	figures lengths fuzz soak server-soak server-load server-fuzz server-hostile server-locust fleet check bench docs dist release lock recording clean

demo: .venv/.installed .venv/.native
	$(BIN)/drafttree demo

# Its times are read by .ci/tests_by_kind.py.
test: .venv/.developing .venv/.native
	$(PYTEST) $(WORKERS) --junitxml build/tests.xml

# The newest versions that pyproject.toml allows, without the lock, in an environment of their own.
test-newest: .venv/.installed .venv/.native
	$(BIN)/python .ci/newest.py
	.venv-newest/bin/python -m pytest $(WORKERS)

# The lowest versions that pyproject.toml allows, in an environment of their own.
test-lowest: .venv/.installed
	$(BIN)/python .ci/lowest.py
	.venv-lowest/bin/python -m pytest $(WORKERS) tests/interfaces/cli/test_command_line.py tests/interfaces/server tests/loading \
		tests/drafters/formats tests/core tests/test_api.py

test-slow: .venv/.developing .venv/.native
	$(PYTEST) -m slow $(WORKERS)

# Each extra alone in a new environment, and its main command there. EXTRAS="serve grammar" tries some of them.
test-extras: dist
	$(BIN)/python .ci/extras.py $(EXTRAS)

# The kernels in Triton, in its interpreter, slow tests included; then the table of their law.
test-triton: .venv/.developing build/triton/.installed
	PYTHONPATH=build/triton $(PYTEST) -m "slow or not slow" $(WORKERS) tests/models/triton
	$(MAKE) --no-print-directory triton-law

# How near each family is to float64, and whether a text has the same bits in random company: one row for each kind of
# weights. make triton-law FAMILIES="llama olmo2" measures these alone.
triton-law: PASSES := 4
triton-law: .venv/.developing build/triton/.installed
	PYTHONPATH=build/triton:tests:. $(BIN)/python -m helpers.triton_law --passes $(PASSES) $(FAMILIES)

# The clients that people use against a server. instructor asks for a rich and a jiter older than ours and openai's; it
# works with these, but nothing can be installed beside it that says so. Coding agents take more than a GB, in
# build/agents, in the versions that their package-lock.json pins; without npm their tests are skipped.
test-clients: .venv/.clients build/agents/.installed
	$(BIN)/python -m pytest -m slow tests/interfaces/server/clients

# What is to be tried on a GPU, in ten minutes at most: the tests that need one, kernels, texts, and speculative decoding
# at the cost of 8 B parameters, with the kernels in Triton and without. Each part has a file in build/gpu, and the next
# make gpu goes on with what is not done; make gpu PARTS="kernels" runs some of it.
gpu: .venv/.developing
	$(BIN)/python .ci/gpu.py $(PARTS)

gpu-tests: .venv/.developing
	$(BIN)/python -m pytest -m cuda

# Plain and speculative decoding at the cost of a larger target (gpu-pythia-2.8b, gpu-llama-8b), eight minutes at most.
gpu-%: .venv/.developing
	timeout --foreground --signal=INT 480 $(BIN)/drafttree bench methods --inflate $* --device cuda \
		--drafter mixed:embedded-eagle3 --policies "chain:depth=5;talon:budget=16,width=4;talon:budget=60" \
		--limit 4 --repeats 2 --passes 1,2,4,8,16,32,64,128 --out build/gpu/inflated-$* || test $$? -eq 124

# Table 1 of TALON and of both versions of DynaTree on CUDA: the embedded target, then one at the cost of 8 B parameters.
# Four minutes at most each: what was run is kept in build/gpu-replay, and the next make gpu-replay goes on from there.
gpu-replay: .venv/.developing
	@if $(BIN)/python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; \
		then $(MAKE) --no-print-directory gpu-replay-embedded gpu-replay-llama-8b; \
		else echo "make gpu-replay: torch sees no CUDA device (make PYTHON=... lends a torch that does); nothing was run"; fi

gpu-replay-%: .venv/.developing
	$(BIN)/drafttree replay talon/1 dynatree-v1/1 dynatree-v2/1 --device cuda --minutes 4 --out build/gpu-replay/$* \
		--no-agreement $(if $(filter embedded,$*),,--inflate $*) || test $$? -eq 3
	$(BIN)/drafttree replay report build/gpu-replay/$* -o build/gpu-replay/$*.md

# The models that people have: texts, and speeds beside other programs, as build/real.json and build/real.md. It takes an
# hour or more, and wants a machine that does nothing else; what was run is kept in build/real, from which the next make
# real goes on. llama.cpp is measured where llama-cpp-python is installed (.venv/bin/pip install "./lab[peers]").
real: real-models .venv/.developing .venv/.native
	mkdir -p build
	$(BIN)/drafttree bench real $(REAL) --out build/real --json > build/real.json
	$(BIN)/python docs/real.py build/real.json build/real.md

real-models:
	@test -n "$(DRAFTTREE_REAL_MODELS)" || { echo "make real: set DRAFTTREE_REAL_MODELS to a folder with GGUF files"; exit 2; }

# The figures of README.md, docs/performance.md and docs/real-models.md: what this machine can measure is measured anew, which
# takes two hours and wants a machine that does nothing else; make figures NAMES="batch serve" measures these alone.
# DRAFTTREE_REAL_MODELS names the folder of real models.
figures: .venv/.developing .venv/.native
	$(BIN)/python docs/figures.py $(NAMES)
	$(BIN)/python docs/real.py
	$(BIN)/python docs/performance.py
	$(BIN)/python docs/speed_picture.py

# docs/images/accepted-lengths.svg from new texts, in two or three minutes; fails where lengths differ from the law.
lengths: .venv/.developing .venv/.native
	$(BIN)/python docs/lengths.py --measure

# 500 random cases of policies, drafters, verifiers and options; make fuzz SEED=... repeats the cases of a run.
fuzz: SEED := $(shell $(PYTHON) -c "import random; print(random.randrange(10**9))")
fuzz: .venv/.developing
	@echo "make fuzz SEED=$(SEED)"
	FUZZ_CASES=500 $(BIN)/python -m pytest tests/fuzz --hypothesis-seed $(SEED) --hypothesis-show-statistics

# Random requests to an engine for so many minutes: every text is compared with its text alone, and memory is watched.
soak: MINUTES := 15
soak: .venv/.developing
	SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m slow -s lab/tests/load/test_soak.py

# The same over HTTP, with clients that go away and clients that send nonsense.
server-soak: MINUTES := 15
server-soak: .venv/.developing
	SERVER_SOAK_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m slow -s lab/tests/load/test_server_load.py -k while

# 1,000 requests, then three times as many of a real model in one process, with the memory behind each.
server-load: REQUESTS := 1000
server-load: .venv/.developing
	SERVER_LOAD_REQUESTS=$(REQUESTS) $(BIN)/python -m pytest -m slow -s lab/tests/load/test_server_load.py -k "mixed or repeats"

# Requests that are made from the server's own OpenAPI description.
server-fuzz: MINUTES := 10
server-fuzz: .venv/.developing
	SERVER_FUZZ_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m slow -s lab/tests/load/test_server_fuzz.py

# Hostile requests, each to a server of its own beside 8 plain streams: a table of what it does to them, to the memory and
# to the time from SIGTERM to the end. The times want a machine that does nothing else.
server-hostile: .venv/.developing
	$(BIN)/python -m pytest -m slow -s lab/tests/load/test_server_hostile.py

# locust's report of a server under load with drafts and without, by turns: 16 users for a minute each.
server-locust: DRAFTERS := auto none auto none
server-locust: .venv/.locust
	for drafter in $(DRAFTERS); do \
		echo "make server-locust: --drafter $$drafter"; \
		$(BIN)/drafttree serve --drafter $$drafter --port 8765 & \
		$(BIN)/locust -f docs/locustfile.py --headless --host http://127.0.0.1:8765 \
			--users 16 --spawn-rate 16 --run-time 60s --stop-timeout 30 --only-summary; \
		kill $$!; wait; \
	done

# Two workers behind NVIDIA Dynamo's frontend on this machine, one killed with 8 streams open: their texts are compared
# with those of undisturbed streams, and the longest gap is told. Dynamo's packages hold pydantic at 2.13.
fleet: .venv/.fleet
	$(BIN)/python -m pytest -m slow -s lab/tests/load/test_fleet.py

check: .venv/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python .ci/language.py check
	$(BIN)/lint-imports

bench: .venv/.installed .venv/.native
	$(BIN)/drafttree bench methods --count-work

# The site, in build/site: nothing is downloaded but the packages that build it. Where there is a Chromium, its pages are
# opened as files: search works, and no page asks another host.
docs: .venv/.documenting
	$(BIN)/python docs/floors.py
	$(BIN)/python docs/options.py
	$(BIN)/python docs/commands.py
	$(BIN)/python docs/troubleshooting.py
	$(BIN)/python docs/speed_picture.py
	$(BIN)/python docs/trees.py
	$(BIN)/python docs/lengths.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	SITE=build/site $(BIN)/python -m pytest -m slow tests/test_site.py

# The wheels and the sdist, in dist.
dist: .venv/.releasing .venv/.native
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist
	cp build/native/*.whl dist

# They are checked, installed in an environment of their own and used there; nothing is uploaded.
release: dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python .ci/release.py

# requirements.lock anew: the newest versions that pyproject.toml allows, for every supported Python and system. The lab
# needs nothing but what is in it. torch is overridden by a requirement that is never met, so that it stays out.
lock: .venv/bin/python
	$(INSTALL) uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --strip-extras --no-annotate \
		--extra grammar --extra report --extra serve --extra docs --extra dev --override .ci/no_torch.txt \
		--custom-compile-command "make lock" --output-file requirements.lock pyproject.toml .ci/tools.txt

# docs/images/recording.svg: make demo as it runs on this machine.
recording: .venv/.installed
	$(BIN)/python docs/recording.py

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "drafttree needs Python 3.11 or newer; name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(if $(TORCH),--system-site-packages) .venv

.venv/.installed: .venv/bin/python pyproject.toml lab/pyproject.toml requirements.lock constraints.txt
	$(if $(TORCH),,$(PIP) $(CPU_TORCH))
	$(PIP) $(BUILD_TOOLS)
	$(PIP) --no-build-isolation --editable . --editable ./lab
	touch $@

# drafttree-native is built where there is a compiler; a compiler's error fails. Without it layers run on torch.
.venv/.native: .venv/.installed $(wildcard native/*.* native/*/*.*)
	@if command -v $${CXX:-c++} >/dev/null; then rm -rf build/native && mkdir -p build \
		&& $(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir build/native ./native \
		&& $(INSTALL) --no-deps --force-reinstall build/native/*.whl; \
		else echo "no C++ compiler here: drafttree-native is not built, and passes run on torch"; fi
	touch $@

.venv/.developing: .venv/.installed
	$(PIP) --no-build-isolation --editable '.[dev]' --editable ./lab
	touch $@

# Clients and Dynamo hold versions of their own, which are not those of the lock.
.venv/.clients: .venv/.developing
	$(INSTALL) --no-build-isolation --editable '.[clients]'
	$(INSTALL) --no-deps 'instructor>=1.17'
	touch $@

build/agents/.installed: $(wildcard tests/interfaces/server/clients/agents/*.json)
	mkdir -p build/agents
	cp $^ build/agents
	if command -v npm >/dev/null; then npm install --prefix build/agents --no-audit --no-fund && touch $@; \
		else echo "no npm here: coding agents are not installed, and their tests are skipped"; fi

# torch's CPU build brings no Triton; its interpreter is mended for this version (tests/helpers/triton_interpreter.py).
build/triton/.installed: .venv/.developing
	@mkdir -p build/triton
	@if $(BIN)/python -c "import triton" 2>/dev/null; then echo "torch brings Triton"; \
		else $(INSTALL) --no-deps --upgrade --target build/triton triton==3.9.0; fi
	touch $@

.venv/.fleet: .venv/.developing
	$(INSTALL) --no-build-isolation --editable '.[dynamo]'
	touch $@

.venv/.locust: .venv/.installed
	$(PIP) --no-build-isolation --editable '.[serve]' locust
	touch $@

.venv/.documenting: .venv/.developing
	$(PIP) --no-build-isolation --editable '.[docs]'
	touch $@

.venv/.releasing: .venv/.installed
	$(PIP) build twine
	touch $@

clean:
	rm -rf .venv .venv-newest .venv-lowest .venv-release .venv-extras build dist
