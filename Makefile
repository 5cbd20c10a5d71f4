# The ways into Terrace. Each target first runs scripts/setup.sh for what it needs, which is quick when nothing
# is missing and otherwise installs it or says in one line why it cannot.
#
# Settings (make NAME=value ...):
#   POOL, DRAM, SSD, RESP   what `make run` opens, its bounds, and where it listens
#   SOAK_SECONDS            how long each long test of `make soak` runs
#   CARGO_TARGET_DIR        where cargo builds, as everywhere

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup build run test lint bench memcheck soak clean
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# rustup puts cargo here, but only login shells have it in their PATH.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(PATH):$(CARGO_HOME)/bin

CARGO_TARGET_DIR ?= $(CURDIR)/target
export CARGO_TARGET_DIR := $(abspath $(CARGO_TARGET_DIR))

# The program that end-to-end tests start.
export TERRACE_BIN := $(CARGO_TARGET_DIR)/release/terrace

POOL ?= ./out/run-pool
DRAM ?= 256M
SSD ?= 2G
RESP ?= 127.0.0.1:6380
SOAK_SECONDS ?= 3600
export POOL DRAM SSD RESP SOAK_SECONDS

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup: ## install what is missing for all of the below
	@scripts/setup.sh all
	@echo "setup: everything is here"

build: ## build the release binary
	@scripts/setup.sh build
	@cargo build --release --locked

run: ## build and start a server on a pool in ./out/run-pool
	@scripts/setup.sh run
	@cargo build --release --locked
	@scripts/run.sh

test: ## build, then unit tests, then end-to-end tests
	@scripts/setup.sh test
	@scripts/test.sh

lint: ## formatting, clippy, unused dependencies, house rules
	@scripts/setup.sh lint
	@scripts/lint.sh

bench: ## the benchmarks of the server, beside its peers
	@scripts/setup.sh bench
	@cargo build --release --locked
	@code=0; for name in first serve; do "$$TERRACE_BIN" bench $$name || code=$$?; done; exit $$code

memcheck: ## the tests of the unsafe crates under valgrind
	@scripts/setup.sh memcheck
	@scripts/memcheck.sh

soak: ## memcheck, then the long tests, SOAK_SECONDS (3600) each
	@scripts/setup.sh memcheck
	@scripts/memcheck.sh
	@scripts/setup.sh test
	@scripts/test.sh soak

clean: ## remove what was built; pools in ./out stay
	@cargo clean
