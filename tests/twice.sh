#!/bin/sh
# twice.sh PYTHON WORDS FOR PYTEST... - run tests, and those that fail once more, one after the other, when all others have
# ended. Some tests watch what happens at the same time; a machine with more to do than it has processors for may starve
# them. What fails again has failed. What does not is named, so that somebody looks at the test.
python=$1
shift
status=0
"$python" -m pytest --cache-clear "$@" || status=$?
[ $status = 1 ] || exit $status # 1: tests have failed; others are not for trying again
echo "twice.sh: some tests failed; they run once more, by themselves"
"$python" -m pytest "$@" -n 0 -x -v --last-failed --last-failed-no-failures none || exit
echo "twice.sh: the tests above failed beside others, and passed by themselves"
