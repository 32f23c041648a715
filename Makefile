# The most important commands are `make demo` and `make test`; `make` lists all of them.
# Each target installs missing tools (scripts/setup), builds, and runs.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# rustup's directory comes first, so that an older rustc of the distribution is not used.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

# Additional arguments of a command: make demo ARGS="--devices 1000"
ARGS ?=
# Directory for the results and charts of demo and bench.
OUT ?= out
# SUDO=1: build as this user, and run demo, test and bench with sudo.
SUDO ?=
export SUDO

.PHONY: help setup demo deb test test-quick test-nightly test-gpu kernel avx512 aarch64 bench lint fmt generate p4 bmv2 doc fuzz readme pictures clean

help: ## list the targets
	@printf 'Linewarden: make TARGET [ARGS="..."]\n\n'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install missing tools and libraries
	@scripts/setup

demo: ## run the demonstration: authenticate 10,000 simulated devices in the kernel during attacks
	@scripts/demo --out $(OUT) $(ARGS)

test: setup ## run all tests and check that the device role builds without an operating system
	@scripts/test $(ARGS)

test-quick: setup ## run the tests that need neither root nor servers, in at most three minutes after the build
	@scripts/test --quick $(ARGS)

test-nightly: setup ## run all tests, then the randomized tests with FUZZ_SEEDS seeds (make fuzz); takes hours
	@scripts/test $(ARGS)
	@$(MAKE) fuzz ARGS=

test-gpu: setup ## run the tests of the CUDA kernels on all GPUs of this machine; skipped without a GPU
	@scripts/test -p linewarden-signatures --test all -- device $(ARGS)

kernel: setup ## run the tests of the data planes on the oldest supported kernel, in an emulator
	@scripts/test-kernel $(ARGS)

avx512: setup ## run the tests of AVX-512 code in an emulator; see scripts/test-avx512 --help
	@scripts/test-avx512 $(ARGS)

aarch64: setup ## build tests for aarch64 and run them in QEMU; see scripts/test-aarch64 --help
	@scripts/test-aarch64 $(ARGS)

bench: setup ## run the benchmark of authentication (linewarden-lab bench auth); writes out/bench.json
	@mkdir -p $(OUT)
	cargo build --release -p linewarden-lab
	$(if $(filter 1,$(SUDO)),sudo -E )$(or $(CARGO_TARGET_DIR),target)/release/linewarden-lab bench auth --json $(OUT)/bench.json --figures $(OUT) $(ARGS)

lint: setup ## check formatting, clippy, documentation, shell scripts, licenses and rules of the source tree
	@scripts/lint

fmt: setup ## format the Rust sources
	cargo fmt --all

generate: setup ## regenerate C and P4 headers and lists of verdicts
	cargo run -q -p linewarden-protocol --features lab --example generate
	scripts/verdict-table > docs/verdicts.md
	scripts/verdict-table --javascript > crates/service/dashboard/assets/core/verdicts.js

p4: ## recompile the P4 programs with p4c from PATH (or P4C=COMPILER)
	@scripts/compile-p4 $(ARGS)

bmv2: ## record BMv2's outputs for p4/features again, with BMv2 from PATH (or SIMPLE_SWITCH=, SIMPLE_SWITCH_CLI=)
	@scripts/bmv2-outputs $(ARGS)

doc: setup ## build the crates' documentation as HTML in target/doc
	cargo doc --workspace --no-deps

fuzz: setup ## run the randomized tests longer: with FUZZ_SEEDS seeds, by default 20000
	LINEWARDEN_SEEDS=$${FUZZ_SEEDS:-20000} PROPTEST_CASES=$${FUZZ_SEEDS:-20000} \
		cargo test -p linewarden-protocol -p linewarden-dataplane $(ARGS)
	LINEWARDEN_SEEDS=$${FUZZ_SEEDS:-20000} cargo test -p linewarden-gateway --test simulation $(ARGS)
	LINEWARDEN_SEEDS=$${FUZZ_SEEDS:-20000} cargo test -p linewarden-switch --test all loading:: $(ARGS)
	LINEWARDEN_DIFFERENTIAL_CASES=$${FUZZ_SEEDS:-20000} cargo test -p linewarden-switch --test all differential:: $(ARGS)
	PROPTEST_CASES=$${FUZZ_SEEDS:-20000} cargo test -p linewarden-signatures --test all tampering:: $(ARGS)

deb: setup ## build the Debian packages in target/deb
	@scripts/deb $(ARGS)

readme: setup ## run demo and bench and insert their output into README.md and docs/measurements.md
	cargo build --release -p linewarden-lab
	@scripts/readme-update

pictures: setup ## take new screenshots of the dashboard with a simulated fleet; takes five minutes
	@scripts/dashboard-picture

clean: ## delete all build outputs and results
	cargo clean
	rm -rf $(OUT)
