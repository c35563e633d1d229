#!/bin/sh
# run.sh SUITE [WORDS FOR PYTEST...] - the tests that need no guest, on another Debian (enter.sh). As root. What make
# test-trixie and make test-distribution do.
#
# The suite is kept in $RDMA_NFSD_LAB (.lab): a second run installs and builds what has changed.
set -eu
suite=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
export RDMA_NFSD_INCLUDE=make,mount,ca-certificates,procps,passwd,iproute2,openssh-client
exec "$here/enter.sh" "$suite" "${RDMA_NFSD_LAB:-$here/../../.lab}/debian-$suite" sh -eu -c '
    make tools develop
    . /etc/os-release
    echo "$PRETTY_NAME, $(.venv/bin/python --version)"
    exec .venv/bin/python -m pytest -p no:cacheprovider -n "${WORKERS:-4}" --dist loadfile "$@"
' sh -m "not guest and not package" "$@"
