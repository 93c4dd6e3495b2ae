# Targets with a ## comment are what `make help` shows.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

cargo_target := $(or $(CARGO_TARGET_DIR),target)

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: cargo .venv/stack/.installed .venv/sam/.installed ## Deploy to an emulated account, drive it for a minute, report
	cargo run --locked --release -p weirgate-tests --bin demo

.PHONY: test
test: cargo ## Formatting, lints, unit, property and integration tests
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	cargo test --locked --workspace
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps
	$(rustdoc_json)
	cargo build --locked --workspace --bin api
	$(cargo_target)/debug/api check $(cargo_target)/doc/weirgate.json

# With everything in the workspace, so that nothing else is built than for the tests.
rustdoc_json = RUSTDOC=$(CURDIR)/scripts/rustdoc-json.sh RUSTDOCFLAGS="-Z unstable-options --output-format json" \
	cargo doc --locked --workspace --no-deps --quiet

.PHONY: api
api: cargo ## List the public surface of the crate in docs/api.md
	$(rustdoc_json)
	cargo build --locked --workspace --bin api
	$(cargo_target)/debug/api write $(cargo_target)/doc/weirgate.json

.PHONY: e2e
e2e: cargo .venv/stack/.installed .venv/sam/.installed ## The demo's path, shortened, as a test
	cargo test --locked --release -p weirgate-tests --test e2e -- --ignored --nocapture

# Checkov's skips stand in the template, beside what they are about and with their reasons.
.PHONY: validate
validate: .venv/sam/.installed .venv/validate/.installed ## Check the template: cfn-lint, sam, checkov, parliament
	.venv/validate/bin/cfn-lint template.yaml
	SAM_CLI_TELEMETRY=0 .venv/sam/bin/sam validate --lint --region us-east-1
	.venv/validate/bin/checkov --framework cloudformation --skip-download --compact --quiet --file template.yaml
	.venv/validate/bin/python -W ignore scripts/check_policies.py template.yaml

# With plain cargo, so for this machine. `sam build` makes what is deployed, and leaves it at the same place. A panic
# aborts there too: the batch comes again either way, and the tables for unwinding are a sixth of the binary.
.PHONY: build
build: cargo ## Build both functions for this machine into target/lambda/
	cargo build --locked --release --config 'profile.release.panic="abort"' -p weirgate-aggregator -p weirgate-reconciler
	install -D $(cargo_target)/release/aggregator target/lambda/aggregator/bootstrap
	install -D $(cargo_target)/release/reconciler target/lambda/reconciler/bootstrap

.PHONY: bench
bench: build .venv/bench/.installed ## Measure, and print the table of the numbers
	cargo run --locked --release -p weirgate-tests --bin bench

.PHONY: scaling
scaling: cargo ## Write the numbers and picture of docs/scaling.md anew
	cargo run --locked --release -p weirgate-tests --bin scaling

# A build for each of some 1,200 mutants: hours. MUTANTS narrows it down: make mutants MUTANTS="-p weirgate-shared --shard 0/8"
.PHONY: mutants
mutants: cargo ## Break the pure parts line by line; each must be caught by a test (hours)
	@command -v cargo-mutants >/dev/null || { echo "make: cargo-mutants is missing: cargo install --locked cargo-mutants@27.1.0" >&2; exit 1; }
	PROPTEST_CASES=64 cargo mutants $(or $(MUTANTS),--workspace)

.PHONY: tools
tools: .venv/stack/.installed .venv/sam/.installed .venv/validate/.installed ## Install the pinned tools into .venv/

.PHONY: tools-cross
tools-cross: .venv/sam/.cross ## Install what `sam build` needs for Lambda itself (400 MB)

.PHONY: clean
clean: ## Remove what was built and installed
	rm -rf target .aws-sam .venv

.PHONY: cargo
cargo:
	@command -v cc >/dev/null || { echo "make: a C compiler is missing: install the package gcc" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "make: cargo is missing: install Rust, for example with the package rustup" >&2; exit 1; }

# One environment per requirements file, because their pins of botocore contradict each other. Made anew when the file
# changes. The files list every dependency, so pip resolves nothing.
.venv/%/.installed: requirements/%.txt
	@command -v python3 >/dev/null || { echo "make: python3 is missing: install Python 3.10 or newer" >&2; exit 1; }
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "make: python3 is older than 3.10" >&2; exit 1; }
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { echo "make: Python's venv module is missing: install the package python3-venv" >&2; exit 1; }
	@echo "Installing the tools of $< into .venv/$*"
	@rm -rf .venv/$*
	@python3 -m venv .venv/$*
	@.venv/$*/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@touch $@

.venv/sam/.cross: requirements/cross.txt .venv/sam/.installed
	@.venv/sam/bin/pip install --quiet --disable-pip-version-check --no-deps --requirement $<
	@touch $@
