# The ways into Terrace. Each target first runs scripts/setup.sh for what it needs, which is quick when nothing
# is missing and otherwise installs it or says in one line why it cannot.
#
# Settings (make NAME=value ...):
#   POOL, DRAM, SSD, RESP   what `make run` opens, its bounds, and where it listens
#   PREFIX, DESTDIR, ETC    where `make install` puts the server and the C library (/usr/local), and settings (/etc for PREFIX /usr and
#                           /usr/local, else PREFIX/etc)
#   SOAK_SECONDS            how long each long test of `make soak` runs
#   FUZZ_SECONDS            how long `make fuzz` stays at each target (60)
#   CARGO_TARGET_DIR        where cargo builds, as everywhere

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup build examples install uninstall deb run test lint bench memcheck fuzz soak clean
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory

# rustup puts cargo here, but only login shells have it in their PATH.
CARGO_HOME ?= $(HOME)/.cargo
export PATH := $(PATH):$(CARGO_HOME)/bin

CARGO_TARGET_DIR ?= $(CURDIR)/target
ifeq ($(strip $(CARGO_TARGET_DIR)),)
CARGO_TARGET_DIR := $(CURDIR)/target
endif
# As a path from here, where it is relative: a function of make's would take a name with a space for two.
ifeq ($(filter /%,$(firstword $(CARGO_TARGET_DIR))),)
CARGO_TARGET_DIR := $(CURDIR)/$(CARGO_TARGET_DIR)
endif
export CARGO_TARGET_DIR

# The program that end-to-end tests start.
export TERRACE_BIN := $(CARGO_TARGET_DIR)/release/terrace

POOL ?= ./out/run-pool
DRAM ?= 256M
SSD ?= 2G
RESP ?= 127.0.0.1:6380
SOAK_SECONDS ?= 3600
PREFIX ?= /usr/local
ifdef ETC
export ETC
endif
export POOL DRAM SSD RESP SOAK_SECONDS PREFIX DESTDIR

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: ## install what is missing for all of the below
	@scripts/setup.sh all
	@echo "setup: everything is here"

build: ## build the release binary
	@scripts/setup.sh build
	@cargo build --release --locked

examples: ## the applications of examples/, each with malloc, MP and OPP, into target/examples
	@scripts/setup.sh build
	@cargo build --release --locked -p terrace-capi
	@examples/build.sh "$(CARGO_TARGET_DIR)/examples" "$(CARGO_TARGET_DIR)/release"
	@examples/changed-lines.sh

install: ## build, then put the server, its manual and unit, the library for run, the C library and terrace.pc below PREFIX
	@scripts/setup.sh build
	@cargo build --release --locked -p terrace-cli -p terrace-preload -p terrace-capi
	@scripts/install.sh install

uninstall: ## remove what install put below PREFIX
	@scripts/install.sh uninstall

deb: ## build, then make Debian packages (the server and run; the C library; its development files) in ./out
	@scripts/setup.sh build
	@cargo build --release --locked -p terrace-cli -p terrace-preload -p terrace-capi
	@scripts/deb.sh out

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

bench: examples ## the benchmarks, beside peers
	@scripts/setup.sh bench
	@cargo build --release --locked
	@code=0; for name in first serve memory run; do "$$TERRACE_BIN" bench $$name || code=$$?; done; exit $$code

memcheck: ## the tests of media and vm under valgrind
	@scripts/setup.sh memcheck
	@scripts/memcheck.sh

fuzz: ## fuzz each target for FUZZ_SECONDS (60), guided by coverage; the corpus grows
	@scripts/setup.sh build
	@scripts/fuzz.sh

soak: ## memcheck, fuzzing, then the long tests, SOAK_SECONDS (3600) each
	@scripts/setup.sh memcheck
	@scripts/memcheck.sh
	@FUZZ_SECONDS=$(SOAK_SECONDS) scripts/fuzz.sh
	@scripts/setup.sh test
	@scripts/test.sh soak

clean: ## remove what was built; pools in ./out stay
	@cargo clean
