# Every command a person needs; each works on a fresh clone.
PYTHON ?= python3.11
SEED ?= 0
PORT ?= 8000
ENGINE ?= transformers
MINUTES ?= 3
FAULTS ?= 200
DAMAGES ?= 200
BIN := .venv/bin
# Python compiles what it imports, and keeps it: to compile all that is installed takes half as long as to install it.
unexport PYTHONDONTWRITEBYTECODE
PIP := --quiet --disable-pip-version-check --no-compile
# What is installed from the package index is pinned, and each file's hash is one that the pins have (`make pins`).
PINNED := $(PIP) --no-deps --require-hashes
# Our own package, with what is installed already: nothing is fetched to build it.
OURS := $(PIP) --no-deps --no-build-isolation --editable .
.DEFAULT_GOAL := help
.PHONY: help install install-vllm install-synth-ai demo demo-vision test lint unit service test-clients test-docs test-vllm-engine test-vllm-cluster long chaos storm soak hostile damage breaks environments contracts site pictures digests pins precommit tax clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

# The build of torch for CPUs where pip has its index, else the public index's build: for Linux that is the one for CUDA,
# which computes on CPUs too. Nothing may pull in torchvision.
.venv/installed: pyproject.toml constraints.txt deploy/torch-cpu.txt deploy/torch.txt
	@start=$$(date +%s); \
	$(PYTHON) -m venv .venv && \
	$(BIN)/pip install $(PINNED) --requirement constraints.txt && \
	{ $(BIN)/pip install $(PINNED) --requirement deploy/torch-cpu.txt 2>/dev/null || \
		$(BIN)/pip install $(PINNED) --requirement deploy/torch.txt; } && \
	$(BIN)/pip install $(OURS) && \
	$(BIN)/pip check --quiet --disable-pip-version-check && \
	echo $$(( $$(date +%s) - start )) > .venv/installed && \
	echo "installed in $$(cat .venv/installed) s"

install: .venv/installed ## make .venv with everything in it

# The inference service with vLLM: the build for CUDA where nvidia-smi lists a GPU, else the one for CPUs, or the one that
# VLLM names. Nothing is resolved: see the pins.
VLLM ?= $(shell nvidia-smi -L 2>/dev/null | grep -q '^GPU' && echo cuda || echo cpu)
.venv-vllm/installed: pyproject.toml deploy/vllm-$(VLLM).txt
	@$(PYTHON) -m venv .venv-vllm && \
	.venv-vllm/bin/pip install $(PINNED) --requirement deploy/vllm-$(VLLM).txt && \
	.venv-vllm/bin/pip install $(OURS) && \
	touch $@

install-vllm: .venv-vllm/installed ## make .venv-vllm, where inference runs vLLM (VLLM=cuda|cpu; by itself what the machine has)

demo: .venv/installed ## SFT, then RL, on this machine: from a TOML to a model that learned (SEED=n PORT=n ENGINE=vllm)
	@$(BIN)/synthctl demo --seed $(SEED) --port $(PORT) --engine $(ENGINE)

demo-vision: .venv/installed ## SFT, then RL of a tiny model that sees (SEED=n PORT=n ENGINE=vllm; BLANK=1 shows it nothing)
	@$(BIN)/python -m demo.vision --seed $(SEED) --port $(PORT) --engine $(ENGINE) $(if $(BLANK),--blank)

test: .venv/installed ## static checks and every fast test
	@$(MAKE) --no-print-directory --jobs=2 lint unit
	@$(MAKE) --no-print-directory service

lint: .venv/installed ## ruff, pyright, import-linter, the layout
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright
	@PYTHONPATH=shared:services $(BIN)/lint-imports
	@$(BIN)/python -m contracts.layout

# Processes that compute on two threads each would wait for each other on two cores.
unit service long: export OMP_NUM_THREADS := 1
# A worker gets a whole file. By itself xdist begins with the files of the most tests, and so ends with those of few tests
# that take long, which are in tests/e2e: named first they come first, and short files fill the workers at the end.
LONG_FILES_FIRST := --dist loadfile --no-loadscope-reorder
SLOWEST := --durations=10 --durations-min=1

# Three workers on two cores here too: they wait for about a quarter of their time.
unit: .venv/installed ## the tests that start no service and no bus
	@$(BIN)/pytest tests/unit -m "not long" --numprocesses 3 --dist loadfile $(SLOWEST)

# These tests wait for about half of their time.
service: .venv/installed ## one service and a real NATS, then a whole cluster
	@$(BIN)/pytest tests/e2e tests/service -m "not long and not soak" --numprocesses 3 $(LONG_FILES_FIRST) $(SLOWEST)

long: .venv/installed ## what takes too long for `make test`: the tour of every command, one device by turns, …
	@$(BIN)/pytest tests/e2e/cli/test_demo.py tests/e2e/test_data_loop.py \
		$$(grep -lr --include='*.py' 'mark\.long' tests/e2e tests/unit tests/service) -m "long and not soak" \
		--numprocesses 3 $(LONG_FILES_FIRST)

# The published clients as their users have them: each in an environment of its own, outside ours.
CLIENTS := synth-ai-0.2.16 synth-ai-0.2.23 openai-1 openai-2 openai agents
.venv-clients/%/installed: tests/clients/requirements/%.txt
	@$(PYTHON) -m venv .venv-clients/$* && \
	.venv-clients/$*/bin/pip install $(PINNED) --requirement $< && touch $@

install-synth-ai: .venv-clients/synth-ai-0.2.23/installed ## make .venv-clients/synth-ai-0.2.23, with the published client

environments: .venv-vllm/installed .venv-site/installed $(CLIENTS:%=.venv-clients/%/installed) ## what test-clients, test-docs and the tests of vLLM need beside .venv (faster with --jobs=2)

test-clients: .venv/installed $(CLIENTS:%=.venv-clients/%/installed) ## the published clients, unmodified, against a cluster; each test with one version, both in `make soak`
	@$(BIN)/pytest tests/clients -m "not soak" --numprocesses 2 --dist loadfile

test-docs: .venv/installed .venv-clients/synth-ai-0.2.23/installed site ## README and the pages of docs/, run as written; the site, built strictly
	@$(BIN)/pytest tests/docs -m "not soak" --numprocesses 2 --dist loadgroup

test-vllm-engine: .venv-vllm/installed ## the vLLM engine alone
	@.venv-vllm/bin/python -m pytest tests/vllm -m "not soak"

test-vllm-cluster: .venv/installed .venv-vllm/installed ## a cluster whose jobs vLLM serves
	@$(BIN)/pytest tests/vllm_cluster --numprocesses 2 --dist loadfile

chaos: .venv/installed ## kill, hang and stop what runs jobs, and the bus, in their middle
	@$(BIN)/pytest tests/chaos -m "not soak" --numprocesses 2 --dist loadfile

storm: .venv/installed ## three minutes of seeded faults on two of every service and three bus servers (MINUTES=n SEED=n)
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

soak: .venv/installed .venv-vllm/installed $(CLIENTS:%=.venv-clients/%/installed) ## 200 seeded faults on two of every service and three bus servers, a check of all that the log says; and what takes minutes to learn
	@$(BIN)/python -m tests.soak --faults $(FAULTS) --seed $(SEED)
	@$(BIN)/python -m tests.soak.damage --damages $(DAMAGES) --seed $(SEED)
	@$(BIN)/pytest tests/e2e tests/chaos tests/service tests/clients tests/docs -m soak
	@.venv-vllm/bin/python -m pytest tests/vllm -m soak

hostile: .venv/installed ## 10,000 inputs that no friend would send, and the most costly ones, at services that run
	@$(BIN)/python -m tests.soak.hostile --seed $(SEED)

damage: .venv/installed ## 200 damaged bytes, one at a time, in a stopped cluster that has trained: none may be silent (DAMAGES=n SEED=n)
	@$(BIN)/python -m tests.soak.damage --damages $(DAMAGES) --seed $(SEED)

breaks: .venv/installed ## break one guarantee at a time in a copy of the tree: its tests must fail (ONLY='words of its name')
	@$(BIN)/python -m tests.breaks $(if $(ONLY),"$(ONLY)")

contracts: .venv/installed ## write the generated documents of docs/
	@$(BIN)/python -m contracts

.venv-site/installed: deploy/site.txt
	@$(PYTHON) -m venv .venv-site && .venv-site/bin/pip install $(PINNED) --requirement $< && touch $@

site: .venv-site/installed ## build the documentation site into .site/html; a broken link is an error
	@.venv-site/bin/python -m contracts.site

pictures: .venv/installed .venv-site/installed ## record the pictures of terminals in docs/pictures from a run of the demo
	@.venv-site/bin/python -m contracts.site.pictures

digests: .venv/installed ## resolve the tags of images and actions, and pin them (needs their registry and GitHub)
	@$(BIN)/python -m contracts.digests

.venv-pins/installed: deploy/uv.txt
	@$(PYTHON) -m venv .venv-pins && .venv-pins/bin/pip install $(PINNED) --requirement $< && touch $@

pins: .venv/installed .venv-pins/installed ## write the hashes of every pinned Python package, for every platform
	@$(BIN)/python -m contracts.pins .venv-pins/bin/uv

precommit: .venv/installed ## have git run the checks by itself (needs the tool `pre-commit` on your path)
	@pre-commit install --hook-type pre-commit --hook-type pre-push

tax: .venv/installed ## what the platform costs against one plain process
	@$(BIN)/python -m benchmarks.tax

clean: ## remove what the commands above made
	rm -rf .venv .venv-clients .venv-pins .venv-site .venv-vllm .site .synth .pytest_cache .ruff_cache
