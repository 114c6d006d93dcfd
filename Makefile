# The verbs of the repository. Each is a command of its own behind this: hack/setup.sh, cargo xtask.
#
#   make demo            from nothing to the answer of an agent run, on this machine
#   make up [NODES=3]    start a control plane and our programs in the background; again: what is missing or new
#   make down            stop and remove all of that
#   make test            every tier of checks and tests
#   make bench           measure, each figure beside its floor
#
# PROFILE=release builds optimised programs for demo and up.

NODES ?= 1
PROFILE ?= debug

.PHONY: help demo up down test bench

help:
	@sed -n '3,9s/^# *//p' Makefile

demo:
	@since=$$(date +%s%N) && hack/setup.sh run && cargo xtask demo --profile $(PROFILE) --since $$since

up:
	@hack/setup.sh run && cargo xtask up --nodes $(NODES) --profile $(PROFILE)

# The program that is there, if any: cargo would wait for whatever else is being built.
down:
	@if [ -x target/debug/xtask ]; then target/debug/xtask down; else cargo xtask down; fi

test:
	@hack/setup.sh test && cargo xtask ci

bench:
	@hack/setup.sh test && cargo xtask bench
