# Lavalane's commands. `make help` lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# The model that `run` and `bench` use: a file of models/, or any GGUF file.
MODEL ?= models/SmolLM2-135M-Instruct.Q4_1.gguf
# Further arguments for lavalane or for the test runner, as in `make run ARGS='--port 9000'`.
ARGS ?=
# The file that `bench` writes its rates to, as JSON; none where this is empty.
JSON ?=
# How long `fuzz` runs each target.
FUZZ_SECONDS ?= 600
# How long `soak` runs.
SOAK_SECONDS ?= 1800

LAVALANE := cargo run --release --quiet --package lavalane-api --bin lavalane --

.PHONY: help
help: ## List the commands
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install what a build needs and this machine lacks
	@scripts/setup.sh

.PHONY: default-model
default-model: setup
	@python3 scripts/fetch_model.py

.PHONY: run
run: default-model ## Serve the default model (MODEL=FILE for another, ARGS='--port 9000' for settings)
	cargo build --release --package lavalane-api
	$(LAVALANE) serve --model '$(MODEL)' $(ARGS)

.PHONY: python-clients
python-clients: setup
	@scripts/python_clients.sh

.PHONY: test
test: default-model python-clients ## Run all tests (ARGS=NAME for some)
	scripts/test.sh $(ARGS)

.PHONY: test-long
test-long: models python-clients ## Run all tests at full length, with every model
	LAVALANE_LONG_TESTS=1 scripts/test.sh $(ARGS)

.PHONY: check
check: default-model python-clients ## Formatting, lints, licences, documentation, then all tests
	scripts/check.sh
	scripts/test.sh

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all

.PHONY: models
models: setup ## Fetch every model that the tests know (0.85 GB)
	python3 scripts/fetch_model.py all

.PHONY: bench
bench: default-model ## Measure prefill and decode (MODEL=FILE, JSON=FILE, ARGS='--growth'; PEER_BENCH=PATH of llama-bench to compare)
	cargo build --release --package lavalane-api
	$(LAVALANE) bench --model '$(MODEL)' $(if $(JSON),--json '$(JSON)') $(ARGS)

.PHONY: bench-kernels
bench-kernels: setup ## Measure each kernel by shape (ARGS=attention for some)
	cargo bench --package lavalane-runtime --bench kernels -- $(ARGS)

.PHONY: soak
soak: setup ## Random clients and faults for SOAK_SECONDS (1800), memory and pages as a table (SOAK_MODEL=FILE)
	SOAK_SECONDS='$(SOAK_SECONDS)' cargo run --release --quiet --package lavalane-integration-tests --bin soak

.PHONY: device-check-pack
device-check-pack: setup ## Pack what checks a machine with a GPU into target/device-check (at most 64 MiB)
	@scripts/device-check-pack.sh

.PHONY: device-check
device-check: device-check-pack ## Test the kernels on this machine's device, and measure 1B and 8B models on it (8 minutes at most)
	target/device-check/device-check.sh target/device-check

.PHONY: coopmat-kernels
coopmat-kernels: setup ## Compile the kernels of cooperative matrices anew, with a compiler that takes 3 minutes to build
	cd shaders/compiler && cargo build --locked --release --quiet
	shaders/compiler/target/release/lavalane-shader-compiler shaders/src/kernels/matmul_coopmat.comp \
		shaders/src/compiled/matmul_coopmat.spv

.PHONY: fuzz
fuzz: setup ## Run each fuzz target for FUZZ_SECONDS (600)
	FUZZ_SECONDS='$(FUZZ_SECONDS)' scripts/fuzz.sh $(ARGS)

.PHONY: tools
tools: setup ## Install the one tool that only `check` uses (cargo-deny)
	cargo install --locked cargo-deny

.PHONY: clean
clean: ## Remove what was built and fetched, but not the models
	cargo clean
	rm -rf .venv .deps
