# Everything that is done with the tree. `make run` and `make test` need a Rust toolchain, make and, for what is
# not installed yet, root on Debian.

CARGO ?= cargo
TEST_LOG := target/test.log

.PHONY: run dist test test-all bench-store bench-streams bench-live bench-rooms bench-topics bench-topics-cluster bench-sessions bench-egress bench-matching bench-hooks bench-entities example-entities test-interleavings autobahn fmt lint openapi test-tools

run:
	$(CARGO) run --release --package tidings -- serve --dev

# A page of todos that every window keeps up to date: examples/entities-todo.
example-entities:
	examples/entities-todo/run

# The binary as it is shipped, stripped, with its debug information apart, in target/dist.
dist:
	CARGO="$(CARGO)" scripts/dist

# The log is kept so that the coverage pages can be checked against the tests that really ran.
test: test-tools lint
	mkdir -p target
	bash -o pipefail -c '. scripts/node-env && $(CARGO) test --workspace --no-fail-fast 2>&1 | tee $(TEST_LOG)'
	$(CARGO) run --quiet --package tidings-testing --bin coverage -- $(TEST_LOG) docs/coverage

# What takes too long for every change: many more seeds, power cuts and kills.
test-all: test
	PROPTEST_CASES=20000 $(CARGO) test --profile soak --package tidings-model --package tidings-engine --package tidings-api
	TIDINGS_POWER_CUTS=10000 $(CARGO) test --profile soak --package tidings-embedded -- crash rooms
	TIDINGS_POWER_CUTS=4000 $(CARGO) test --profile soak --package tidings-testing --test it -- sessions::power
	TIDINGS_ENTITY_CONNECTIONS=200 $(CARGO) test --profile soak --package tidings-testing --test it -- entities::many
	TIDINGS_POWER_CUTS=2000 $(CARGO) test --profile soak --package tidings-testing --test it -- hooks_survival::power
	TIDINGS_KILL_ROUNDS=200 $(CARGO) test --profile soak --package tidings-testing --test it -- durability rooms::survival hooks_survival::load
	TIDINGS_TOPIC_CLIENTS=10000 $(CARGO) test --profile soak --package tidings-testing --test it -- topics::reconnect
	TIDINGS_REPLAY_EVENTS=1000000 $(CARGO) test --profile soak --package tidings-testing --test it -- hooks_survival::growth
	TIDINGS_ROOM_EVENTS=1000000 $(CARGO) test --profile soak --package tidings-testing --test it -- rooms::cursors
	TIDINGS_INTERLEAVINGS=50000 $(MAKE) test-interleavings
	PROPTEST_CASES=20000 $(CARGO) test --profile soak --package tidings-topics
	TIDINGS_FUZZ_REQUESTS=200000 TIDINGS_SCHEMA_EXAMPLES=300 $(CARGO) test --profile soak --package tidings-testing --test it -- fuzz schema

# Rings and bundles under a scheduler that tries interleavings. In a target folder of its own: the flag rebuilds everything.
test-interleavings:
	RUSTFLAGS="--cfg shuttle" CARGO_TARGET_DIR=target/shuttle $(CARGO) test --package tidings-engine --lib -- deliver::interleavings

# The Autobahn test suite for WebSockets. It needs a Python 2.7 with pip, which PYTHON2 names.
autobahn:
	CARGO="$(CARGO)" scripts/autobahn

# The store beside the raw sync of the disk under target/.
bench-store:
	mkdir -p target
	$(CARGO) build --release --package tidings-bench
	target/release/store target

# Streams over HTTP beside the servers of the protocol's authors. SECS=4 CORES=shared|apart ONLY=part-of-a-row's-name
bench-streams:
	CARGO="$(CARGO)" scripts/bench-streams

# Live delivery beside other servers. LIVELOAD names the folder of the load generator. SECS=4 ONLY=part-of-a-row's-name
bench-live:
	CARGO="$(CARGO)" scripts/bench-live

# Rooms beside nginx with Nchan. As bench-live; smaller: READERS=50 ROOMS=20 READERS_PER_ROOM=10 IDLE=200 MISSED=2000
bench-rooms:
	CARGO="$(CARGO)" scripts/bench-rooms

# Topics beside Bun, ws-kit, nginx with Nchan, and NATS. As bench-live; smaller: SUBSCRIBERS=50 TOPICS=200 IDLE=200 CHANGING=16
bench-topics:
	CARGO="$(CARGO)" scripts/bench-topics

# Topics on two nodes over NATS and Redis, beside these brokers alone. Smaller: SECS=1 PUBLISHERS=4 WINDOW=64
bench-topics-cluster:
	CARGO="$(CARGO)" scripts/bench-topics-cluster

# Publishing to sessions, beside an append to each of as many plain streams. SUBSCRIBERS=at-most-so-many
# ONLY=publishing|device|few|many
bench-sessions:
	mkdir -p target/bench
	$(CARGO) build --release --quiet --package tidings --package tidings-bench
	bash -o pipefail -c 'target/release/sessions | tee target/bench/sessions.md'

# Requests to endpoints, beside a bare loop over connections of the same HTTP library. SECS=2
bench-egress:
	$(CARGO) build --release --quiet --package tidings-bench --bin egress
	target/release/egress

# The index from patterns to subscribers, beside asking every pattern. ONLY=matching|changes|crafted
bench-matching:
	mkdir -p target/bench
	$(CARGO) build --release --quiet --package tidings-bench --bin matching
	bash -o pipefail -c 'target/release/matching | tee target/bench/matching.md'

# Deliveries of hooks, beside a bare loop of signed POSTs. DELIVERIES=400000 PARKED=1000000 SECS=15
# ONLY=throughput|latency|holes|parked
bench-hooks:
	mkdir -p target/bench
	$(CARGO) build --release --quiet --package tidings --package tidings-bench --bin tidings --bin hooks
	bash -o pipefail -c 'target/release/hooks | tee target/bench/hooks.md'

# Changes of rows in a private PostgreSQL, from the commit to the socket, beside a bare LISTEN. Needs PostgreSQL 15 or later, which
# scripts/install-test-tools installs. ONLY=latency|throughput|capture|registry; smaller: SECS=3 CONNECTIONS=20 SUBSCRIPTIONS=20
# ENTITIES=400 RATE=100 WRITERS=8 ROWS=20000
bench-entities:
	mkdir -p target/bench
	$(CARGO) build --release --quiet --package tidings --package tidings-bench --bin tidings --bin entities
	bash -o pipefail -c 'target/release/entities | tee target/bench/entities.md'

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

fmt:
	$(CARGO) fmt --all

# The description of the interface, as the server serves it.
openapi:
	TIDINGS_WRITE_OPENAPI=1 $(CARGO) test --package tidings-testing --test it -- schema::the_description

test-tools:
	scripts/install-test-tools
