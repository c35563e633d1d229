# rdma-nfsd: each task is one command. On a fresh Debian 12 or 13 machine, as root: make run; make test.
#
#   make setup      install the Debian packages that are missing, build into .venv, leave .venv/bin/rdma-nfsd
#   make develop    setup, and the tools for tests, lint and measuring
#   make run        setup, then serve ./exports.yaml (a sample directory ./export) in the foreground
#   make test       develop, build the guest, lint, then the tests, with mounts by a real Linux client
#   make test-long  what make test leaves out because it takes minutes by itself: packages, the unit under systemd, more crashes
#   make test-devices  the server on RDMA devices (rxe, siw) in a guest: up to an hour more, not part of make test
#   make test GUEST=6.12  the same with another kernel of Debian's in the guest: 6.1, 6.12, newest (of its backports)
#   make test-newest   the newest kernel's mounts, restart and delegations; make test has a part of them
#   make test-matrix  every kernel, NFS version and transport; writes the table of docs/testing.md; KERNELS="6.12" for some
#   make test-fast  develop, then the tests that need no guest and build no package
#   make test-trixie  the same on Debian 13, in a chroot below .lab (as root); PYTEST="..." for pytest
#   make test-distribution DIST=sid  the same on another Debian
#   make test-deb DIST=trixie  build the Debian package on that Debian, install, upgrade and remove it under its systemd (as root)
#   make test-container  build the container, run it with crun and runc (as root); not part of make test
#   make test-kerberos  every version, transport and protection by Kerberos, with a Linux client; writes the table of docs/kerberos.md; make test has two of them
#   make test-ceph  CephFS as an export, and records in RADOS, on a Ceph cluster that it starts (230 MB of packages); make test has a short run where they are there
#   make test-ceph-guest  Linux clients over RDMA of two gateways over CephFS: work, locks, a takeover under load; not part of make test
#   make test-faults      what a server that misbehaves does to a Linux client (GUEST= as above); not part of make test
#   make hostile SECONDS=60  attack a running server in every way, for a minute each, and print a table; make test has a second of each
#   make test-soak SOAK=10m  clients whose histories are checked, while the server is killed and its power cut; an hour unless told. SOAK="10m --guest": with a Linux client, too
#   make demo       setup, build the guest, then show a mount over RDMA with fio running on it
#   make fuzz TARGET=iwarp MINUTES=10  fuzz the code that takes octets from peers (docs/fuzzing.md); not part of make test
#   make deb        a Debian package, in ./dist
#   make lint       ruff, mypy, import-linter, and how long files and functions are
#   make clean      remove everything that was built (.venv, .lab, extensions); not ./export and ./state
#
# Every step leaves a stamp. If nothing has changed, a step does nothing and uses no network.

SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
BUILDING := build/in-progress
# Test files that run at a time, where no guest takes the processors: half of their time is spent waiting.
WORKERS ?= 4
# What fails beside others runs once more by itself.
TWICE = tests/twice.sh $(BIN)/python
# Tests start the server a thousand times. Without compiled modules each start takes half as long again.
unexport PYTHONDONTWRITEBYTECODE

# The declarations are sources, too: formats are generated from them (nfsd/wire/).
SOURCES := $(shell find nfsd rpcrdma -name '*.pyx' -o -name '*.pxd' -o -name '*.pxi') setup.py setup_translate.py \
	$(wildcard nfsd/protocol/*.py nfsd/wire/*.py rpcrdma/xdr/*.py rpcrdma/wire/*.py rpcrdma/rpc/messages.py)
# The provider over RDMA devices is a tenth of what is compiled. To serve, it is built where there are such devices.
VERBS := $(if $(wildcard /sys/class/infiniband/*),$(STAMPS)/verbs)
DEB_SOURCES := $(shell git ls-files nfsd rpcrdma bench debian systemd docs setup.py setup_translate.py pyproject.toml exports.yaml '*.md' 2>/dev/null)
BENCH_SOURCES := $(wildcard bench/*.pyx bench/*.pxd)
# Makes that this one runs go on counting.
ifndef BEGAN
BEGAN := $(shell date +%s)
endif
export BEGAN
SAY = echo "[$$(( $$(date +%s) - $(BEGAN) ))s]"

.PHONY: setup develop tools run test test-long test-devices test-fast test-guest test-newest test-some-newest test-matrix test-kerberos test-ceph test-ceph-guest test-faults test-trixie test-distribution test-deb test-container test-soak demo deb lint lab fuzz hostile ceph clean help

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMPS)/setup
	@:

develop: $(STAMPS)/development
	@:

# The virtual environment, with what building needs. The file "incomplete" exists while this runs. An environment that has it was
# left half-way.
$(STAMPS)/tools: pyproject.toml setup.py tests/vm/host-packages.sh
	@tests/vm/host-packages.sh build
	@[ ! -e $(STAMPS)/incomplete ] || rm -rf $(VENV)
	@mkdir -p $(STAMPS) && touch $(STAMPS)/incomplete
	@$(SAY) "virtual environment $(VENV)"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@$(SAY) "installing the tools to build with"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'setuptools>=77' wheel 'Cython>=3.0' 'xdrlib3>=0.1'
	@rm $(STAMPS)/incomplete && touch $@

# The package in editable form, and what it needs. (Its extensions are built once, below.) The file "installing" exists while this
# runs. If it is there before, packages may have been left half-way: all are installed again.
$(STAMPS)/package: $(STAMPS)/tools
	@$(SAY) "installing the Python packages"
	@again=; [ ! -e $(STAMPS)/installing ] || again=--force-reinstall; touch $(STAMPS)/installing; \
		RDMA_NFSD_EXTENSIONS=none $(BIN)/python -m pip install --quiet --disable-pip-version-check $$again \
		--no-build-isolation --editable .
	@rm $(STAMPS)/installing && touch $@

# The headers for RDMA devices.
$(STAMPS)/verbs: $(STAMPS)/tools
	@tests/vm/host-packages.sh verbs
	@touch $@

# Build the extensions whose sources have changed, with the environment's own Cython and without network. If $(BUILDING) is
# still there, an earlier build was interrupted, and the files that it wrote may be incomplete.
$(STAMPS)/extensions: $(STAMPS)/tools $(VERBS) $(SOURCES)
	@$(SAY) "building the extensions (one to two minutes on two processors)"
	@[ ! -e $(BUILDING) ] || find nfsd rpcrdma bench build \( -name '*.c' -o -name '*.o' -o -name '*.so' \) \
		-newer $(BUILDING) -delete 2>/dev/null || :
	@mkdir -p build && touch $(BUILDING)
	@RDMA_NFSD_EXTENSIONS=serve $(BIN)/python setup.py --quiet build_ext --inplace
	@rm $(BUILDING) && touch $@

# Both at a time: building begins with some seconds in which only one processor has work.
$(STAMPS)/setup: $(STAMPS)/tools $(VERBS) $(SOURCES)
	@$(MAKE) --no-print-directory -j2 $(STAMPS)/package $(STAMPS)/extensions
	@touch $@
	@$(SAY) "installed: $(BIN)/rdma-nfsd"

# Tests, lint and measuring also need the tools and the load generator.
$(STAMPS)/development: $(STAMPS)/verbs $(STAMPS)/setup $(BENCH_SOURCES)
	@$(SAY) "installing the development tools"
	@RDMA_NFSD_EXTENSIONS=none $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--no-build-isolation --editable '.[dev]'
	@[ ! -e $(BUILDING) ] || find bench build \( -name '*.c' -o -name '*.o' -o -name '*.so' \) \
		-newer $(BUILDING) -delete 2>/dev/null || :
	@mkdir -p build && touch $(BUILDING)
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@rm $(BUILDING) && touch $@

lab: setup
	@tests/vm/host-packages.sh guest
	@$(BIN)/python -m tests.vm.build

export/README.txt:
	@mkdir -p export/docs
	@printf 'This directory is served by rdma-nfsd (see exports.yaml).\n' > $@
	@[ -e export/docs/hello.txt ] || printf 'Hello over NFS.\n' > export/docs/hello.txt
	@chmod 1777 export # the sample squashes root: let everybody make files of their own

run: setup
	@[ -e export ] || $(MAKE) -s export/README.txt
	exec $(BIN)/rdma-nfsd serve --config exports.yaml

# The tests make and mount file systems, dissect captures, run a KDC and open a browser.
tools:
	@tests/vm/host-packages.sh disks captures kerberos
	@tests/vm/host-packages.sh browser

test: tools develop lab lint
	$(TWICE) -v -n $(WORKERS) --dist loadfile --durations=25 -m "not guest and not ceph and not container and not long"
	$(TWICE) -vv -n 2 --dist loadfile --durations=15 \
		-m "guest and not ceph and not devices and not faults and not matrix and not long"
	@[ "$(GUEST)" = newest ] || $(MAKE) -s test-some-newest
	@echo "not run: what takes minutes by itself, and RDMA devices in a guest; that is make test-long and make test-devices"
	@$(BIN)/python -m tests.ceph.installed

# The tests on another release of Debian, in a chroot below .lab. This needs root.
test-trixie:
	@tests/distributions/run.sh trixie $(PYTEST)

DIST ?= sid

test-distribution:
	@tests/distributions/run.sh $(DIST) $(PYTEST)

test-deb:
	@tests/distributions/deb.sh $(DIST)

test-container: develop
	$(BIN)/python -m pytest -v -s -m container tests/containers

test-fast: tools develop
	$(TWICE) -n $(WORKERS) --dist loadfile -m "not guest and not package and not ceph and not container"

test-guest: tools develop lab
	$(BIN)/python -m pytest -vv -n 2 --dist loadfile --durations=15 -m "guest and not ceph and not devices and not faults and not matrix"

# Packages, the unit, crashes and power cuts in every version: what a change of these needs, and a release.
test-long: tools develop lab
	@tests/vm/host-packages.sh keepalived
	$(BIN)/python -m pytest -vv -n 2 --dist loadfile --durations=15 -m "long and not matrix"

test-devices: tools develop lab
	$(BIN)/python -m pytest -v -s --durations=15 -m devices

# The part of them that make test runs, too.
test-some-newest: tools develop
	@tests/vm/host-packages.sh guest
	@$(BIN)/python -m tests.vm.build newest
	GUEST=newest $(BIN)/python -m pytest -vv -n 2 --dist loadfile --durations=15 -m "newest and not long" tests/vm || \
		{ echo "FAILED with the newest kernel: make test-some-newest runs these tests again"; exit 1; }

test-newest: tools develop
	@tests/vm/host-packages.sh guest
	@$(BIN)/python -m tests.vm.build newest
	GUEST=newest $(BIN)/python -m pytest -vv -n 2 --dist loadfile --durations=15 \
		tests/vm/test_mount.py tests/vm/test_restart.py tests/vm/test_delegations.py tests/vm/test_client_setup.py \
		tests/vm/test_tls.py tests/vm/test_tls_in_kernel.py

test-matrix: tools develop
	@tests/vm/host-packages.sh guest
	$(BIN)/python -u -m tests.vm.matrix $(KERNELS)

test-kerberos: tools develop lab
	RDMA_NFSD_WRITE_TABLE=1 $(BIN)/python -m pytest -vv --durations=15 tests/vm/test_kerberos.py

# What was built before the libraries' headers were there lacks what is over them: then it is built now.
ceph: develop
	@tests/vm/host-packages.sh ceph keepalived
	@$(BIN)/python -c 'from nfsd.backends import cephfs; from nfsd.stable import rados; raise SystemExit(bool(cephfs.why_not() or rados.why_not()))' || \
		$(BIN)/python setup.py --quiet build_ext --inplace

test-ceph: ceph
	$(BIN)/python -m pytest -v -rs --durations=15 -m "not guest" tests/ceph

test-ceph-guest: ceph lab
	$(BIN)/python -m pytest -v -s -rs --durations=15 -m guest tests/ceph

test-faults: tools develop lab
	$(BIN)/python -m pytest -v -s tests/vm/test_faults.py

# --check reports obstacles before the guest is built.
demo: setup
	@tests/vm/host-packages.sh guest
	@$(BIN)/python -m tests.vm.demo --check $(DEMO)
	@$(MAKE) -s lab
	@$(BIN)/python -m tests.vm.demo $(DEMO)

# Build in a copy of the sources, because dpkg-buildpackage writes beside the directory that it builds. It uses Debian's own Python.
deb: dist/.deb-of-these-sources
	@:

dist/.deb-of-these-sources: $(DEB_SOURCES)
	@tests/vm/host-packages.sh verbs deb
	@rm -f dist/rdma-nfsd_*.deb
	@rm -rf build/deb && mkdir -p build/deb/rdma-nfsd dist
	@git ls-files -z --cached --others --exclude-standard | tar -c --null -T - | tar -x -C build/deb/rdma-nfsd
	cd build/deb/rdma-nfsd && PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg-buildpackage -b -us -uc
	@mv build/deb/*.deb dist/ && rm -rf build/deb
	lintian --fail-on error dist/rdma-nfsd_*.deb
	@touch $@
	@$(SAY) "$$(ls dist/rdma-nfsd_*.deb)"

SECONDS ?= 10

hostile: develop
	$(BIN)/python -u -m tests.hostile --seconds $(SECONDS) $(ONLY:%=--only %)

SOAK ?= 1h
SEED ?= 1
KILLS ?= 0

test-soak: tools develop $(if $(filter --guest --devices,$(SOAK)),lab)
	$(BIN)/python -u -m tests.soak --time $(SOAK) --seed $(SEED) --kills $(KILLS) --json soak.json --log soak.log

TARGET ?= iwarp
MINUTES ?= 10

# MINUTES are of processor time. KEEP=--keep then minimises the inputs into tests/fuzz/corpus.
fuzz: develop
	@tests/vm/host-packages.sh fuzz
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3.0'
	@$(BIN)/python -m tests.fuzz.build .fuzz/lib
	$(BIN)/python -m tests.fuzz.run $(TARGET) $(MINUTES) $(KEEP)

lint: develop
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --strict tests/vm bench
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/unit/test_sizes.py

clean:
	rm -rf $(VENV) .lab .fuzz build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find nfsd rpcrdma bench tests -name __pycache__ -prune -exec rm -rf {} +
	rm -f nfsd/wire/nfs*.pxd rpcrdma/wire/rpc.pxd rpcrdma/wire/rdma*.pxd rpcrdma/wire/chunk_lists.pxd
	find nfsd rpcrdma bench \( -name '*.so' -o -name '*.c' -o -name '*.html' \) -delete
