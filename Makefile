# A thin front for CMake: each target installs what it needs (scripts/setup.sh), then does one thing.
# JOBS=1 make build       fewer jobs at once
# CUDA=1 make build       with the CUDA backend, in build-cuda (needs the CUDA toolkit)
# QDELTA_NO_SETUP=1 make  leave the system's packages alone

JOBS ?= $(shell nproc)
ifeq ($(CUDA),1)
PRESET := cuda
FOLDER := build-cuda
else
PRESET := cpu
FOLDER := build
endif
PREFIX ?= /usr/local
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

.PHONY: help build demo test test-python wheel bench lint asan tsan soak torture install dist clean

help: ## this list
	@echo "qdelta: a native engine for delta-rule language models. The targets:"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

build: ## build the engine, build/qdelta, and its tests; with CUDA=1 in build-cuda
	@scripts/build.sh $(PRESET) $(JOBS)

demo: ## train small models of three rules on a recall task, live, and compare them (two minutes)
	@scripts/build.sh cpu $(JOBS) qdelta_cli
	@scripts/demo.sh

test: ## build and run all tests
	@scripts/build.sh $(PRESET) $(JOBS)
	@echo "test: running the tests"
	@ctest --preset $(PRESET)
	@scripts/run_python_tests.sh

wheel: ## make a wheel of the Python package in dist/, with all that it needs; with CUDA=1 for GPUs
	@scripts/wheel.sh $(PRESET) $(JOBS)

test-python: ## install PyTorch, transformers and the wheel into build/python, and run all tests of the Python package
	@scripts/wheel.sh $(PRESET) $(JOBS)
	@scripts/test_python.sh $(PRESET) $(JOBS)

bench: ## time the operators on this machine
	@scripts/build.sh cpu $(JOBS) qdelta_cli
	@build/qdelta bench op

lint: ## check the format, the C++ (clang-tidy) and the scripts; checks again only what changed
	@scripts/lint.sh $(JOBS)

asan: ## the tests under the address and undefined-behaviour sanitizers
	@scripts/build.sh asan $(JOBS)
	@echo "asan: running the tests"
	@ctest --preset asan

tsan: ## the tests under the thread sanitizer, built with Clang
	@scripts/build.sh tsan $(JOBS)
	@echo "tsan: running the tests"
	@ctest --preset tsan

soak: ## ten minutes of 256 clients against the server, some of them hostile: make soak MINUTES=10
	@scripts/build.sh cpu $(JOBS) qdelta_cli
	@scripts/soak.py --qdelta build/qdelta --minutes $(or $(MINUTES),10)

torture: ## every call that changes files goes wrong once: killed, failed, lost; then the command is run again (minutes)
	@scripts/build.sh cpu $(JOBS)
	@tests/torture/torture.py --qdelta build/qdelta --faults build/tests/libtorture_faults.so --jobs $(JOBS)

install: ## install the binary, the library and its header: make install PREFIX=/usr/local
	@scripts/build.sh cpu $(JOBS)
	@echo "install: into $(DESTDIR)$(PREFIX)"
	@cmake --install build --prefix "$(PREFIX)"

dist: ## make dist/qdelta-VERSION-linux-ARCH, a folder that runs on other machines, and its .tar.gz
	@scripts/build.sh $(PRESET) $(JOBS)
	@scripts/dist.sh $(FOLDER)

clean: ## remove everything that was built
	@echo "clean: removing build*/, dist/ and demo/"
	@rm -rf build build-asan build-tsan build-cuda build-lint dist demo
