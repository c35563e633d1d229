#!/bin/bash
# steps.sh FILE WAY [MAKE'S TARGET] - what a newcomer does in a clone on a bare Debian, timed: from nothing to a directory that
# is served and listed, then, if WAY is not "served", to its mount by a Linux client over RDMA, and the tests if a target is
# given. Each step leaves a line in FILE: its name, its seconds, and those of a processor as user and as system, and how many
# processes ran or waited to in the last minute of it. What has a line already is not done again. Run by newcomer.py, in a
# Debian made for that.
set -eu
told=$1
way=$2
tests=${3:-}
TIMEFORMAT=$'%R\t%U\t%S'
exec 3>&2

taken() { echo "$(cat "$told.time")"$'\t'"$(cut -d ' ' -f 1 /proc/loadavg)"; }

step() { # step NAME WORDS...: run a command and tell how long it took
    local status=0 name=$1
    shift
    ! grep -qF "$name"$'\t' "$told" || return 0
    { time "$@" 2>&3; } 2>"$told.time" || status=$?
    [ $status != 0 ] || printf '%s\t%s\n' "$name" "$(taken)" >>"$told"
    return $status
}

serve() { # in a network of its own: the ports of the machine may be taken
    unshare --net bash -eu -c '
        ip link set lo up
        : >ready
        make run >ready &
        for ((waited = 0; waited < 600; waited++)); do
            ! grep -q "^rdma-nfsd ready: " ready || break
            kill -0 $!
            sleep 0.1
        done
        cat ready
        .venv/bin/rdma-nfsd ls rdma://127.0.0.1/export
        .venv/bin/rdma-nfsd cat rdma://127.0.0.1/export/docs/hello.txt | grep -x "Hello over NFS."
        kill $!
        wait $! || [ $? = 143 ] # make ends by the signal, as the server does that it has started
    '
}

mounted() { # the demonstration's own words go to its log: the kernel's line of the mount has to be in it
    make demo DEMO="--seconds 1" >demo.log 2>&1 && grep "^ *[^ ]* /mnt nfs4 .*proto=rdma" demo.log || {
        cat demo.log
        return 1
    }
}

touch "$told"
step "Debian's packages" tests/vm/host-packages.sh build
step "virtual environment, tools to build with" make .venv/stamps/tools
step "extensions, Python packages" make setup
step "\`make run\`, \`rdma-nfsd ls\`, \`rdma-nfsd cat\`" serve
[ "$way" != served ] || exit 0
step "\`make lab\`, a guest with Linux" make lab
step "\`make demo\`, mounted by it over RDMA" mounted
[ -n "$tests" ] || exit 0
step "what tests take" make tools develop
status=0
# Tests that have failed are run again; how long they took is told all the same.
[ ! -e "$told.red" ] || { sed -i "/^\`make $tests\`/d" "$told" && rm "$told.red"; }
step "\`make $tests\`" make "$tests" >tests.log || status=$?
if [ $status != 0 ]; then
    printf '%s\t%s\n' "\`make $tests\`" "$(taken)" >>"$told"
    touch "$told.red"
fi
[ -s tests.log ] || exit 0
tail -n 60 tests.log
# What failed beside others has run once more: a line of its own (tests/twice.sh).
sed -n 's/^=* *\(.* in [0-9.]*s\).*$/\1/p' tests.log | paste -s -d ';' | sed 's/;/; then by themselves /g' >"$told.tests"
exit $status
