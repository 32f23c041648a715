# Linewarden's two commands are `make demo` and `make test`; `make` alone lists the rest.
# Each target installs what the machine lacks (scripts/setup), builds, and runs.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# rustup's directory comes first, so that a distribution's older rustc does not get in the way.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)

# Further arguments of the commands: make demo ARGS="--devices 1000"
ARGS ?=
# Where demo and bench write their results and pictures.
OUT ?= out
# SUDO=1 builds as this user and runs demo, test and bench with sudo.
SUDO ?=
export SUDO

.PHONY: help setup demo deb test test-gpu kernel avx512 aarch64 bench lint fmt generate p4 bmv2 doc fuzz readme pictures clean

help: ## list the targets
	@printf 'Linewarden: make TARGET [ARGS="..."]\n\n'
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: ## install what the machine lacks; nothing where nothing is missing
	@scripts/setup

demo: setup ## authenticate 10,000 simulated devices through the kernel, under attack
	@mkdir -p $(OUT)
	cargo build --release -p linewarden
	@scripts/demo --out $(OUT) $(ARGS)

test: setup ## all tests of all crates, then the device role without an operating system
	@scripts/test $(ARGS)

test-gpu: setup ## the tests of the CUDA kernels on every GPU of this machine; where there is none, they say why
	@scripts/test -p linewarden-signatures --test gpu --test validity -- device $(ARGS)

kernel: setup ## the data planes' tests on the oldest kernel that is meant, in an emulator
	@scripts/test-kernel $(ARGS)

avx512: setup ## tests of code for AVX-512 with IFMA, in an emulator that has it: see scripts/test-avx512 --help
	@scripts/test-avx512 $(ARGS)

aarch64: setup ## tests of code for aarch64, built on an x86-64 machine and run in QEMU: see scripts/test-aarch64 --help
	@scripts/test-aarch64 $(ARGS)

bench: setup ## the papers' experiments; rows go to out/bench.json
	@mkdir -p $(OUT)
	cargo build --release -p linewarden
	$(if $(filter 1,$(SUDO)),sudo -E )$(or $(CARGO_TARGET_DIR),target)/release/linewarden bench auth --json $(OUT)/bench.json --figures $(OUT) $(ARGS)

lint: setup ## formatting, clippy, documentation, shell scripts, licences, the source tree's own rules
	@scripts/lint

fmt: setup ## format the Rust sources
	cargo fmt --all

generate: setup ## rewrite what is generated: C and P4 headers, the lists of verdicts, the messages of gRPC services
	cargo run -q -p linewarden-protocol --features alloc --example generate
	cargo run -q -p linewarden-p4runtime --example generate_p4runtime_messages
	cargo run -q -p linewarden-link --example generate_link_messages
	scripts/verdict-table > docs/verdicts.md
	scripts/verdict-table --javascript > crates/service/dashboard/assets/core/verdicts.js

p4: ## compile the P4 programs again, with p4c from PATH (or P4C=COMPILER)
	@scripts/compile-p4 $(ARGS)

bmv2: ## run the inputs of p4/features through BMv2 again, from PATH (or SIMPLE_SWITCH=, SIMPLE_SWITCH_CLI=)
	@scripts/bmv2-outputs $(ARGS)

doc: setup ## the crates' documentation as HTML in target/doc
	cargo doc --workspace --no-deps

fuzz: setup ## the seeded simulations and differential tests, longer: FUZZ_SEEDS=20000 by default
	LINEWARDEN_SEEDS=$${FUZZ_SEEDS:-20000} PROPTEST_CASES=$${FUZZ_SEEDS:-20000} \
		cargo test -p linewarden-protocol -p linewarden-dataplane $(ARGS)
	LINEWARDEN_SEEDS=$${FUZZ_SEEDS:-20000} cargo test -p linewarden-gateway --test simulation $(ARGS)
	LINEWARDEN_SEEDS=$${FUZZ_SEEDS:-20000} LINEWARDEN_DIFFERENTIAL_CASES=$${FUZZ_SEEDS:-20000} \
		cargo test -p linewarden-switch --test loading --test differential $(ARGS)
	PROPTEST_CASES=$${FUZZ_SEEDS:-20000} cargo test -p linewarden-signatures --test vandals $(ARGS)

deb: setup ## the Debian package, in target/deb
	@scripts/deb $(ARGS)

readme: setup ## run demo and bench and put their output into README.md
	cargo build --release -p linewarden
	@scripts/readme-update

pictures: setup ## take the pictures of the dashboard anew, of a fleet at work: five minutes
	@scripts/dashboard-picture

clean: ## remove everything that was built or measured here
	cargo clean
	rm -rf $(OUT)
