"""Files made natively when descriptors are short."""

import contextlib
import os
import resource

import pytest

from nfsd.protocol.nfs3 import createmode3
from tests.unit.test_nfs3_native import run
from tests.unit.test_nfs3_native_names import CREATE, JUKEBOX, OK, REMOVE, creation, made, removal, status


@contextlib.contextmanager
def one_descriptor_left():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 64, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)


@pytest.mark.parametrize("how", [createmode3.UNCHECKED, createmode3.GUARDED])
def test_the_last_descriptor_is_enough_to_create_a_file_of_a_size(how, tmp_path):
    """The last descriptor is given up to find the new file by its name: by then it has its size."""

    async def scenario(both):
        (one,) = await made(both, "one")
        path = os.path.join(both.path, "one", "n")
        with one_descriptor_left():
            assert status(await both.native.call(CREATE, creation(one, b"n", how=how, size=9))) == OK
            assert both.answered(CREATE) == 1
        assert os.stat(path).st_size == 9

    run("memory", tmp_path, scenario)


def test_the_last_descriptor_is_enough_to_create_a_file(tmp_path):
    async def scenario(both):
        (one,) = await made(both, "one")
        with one_descriptor_left():
            reply = await both.native.call(CREATE, creation(one, b"n"))
            assert status(reply) == OK
            assert both.answered(CREATE) == 1
            refused = await both.native.call(CREATE, creation(one, b"m"))
        assert status(refused) in (OK, JUKEBOX)
        assert status(await both.native.call(REMOVE, removal(one, b"n"))) == OK

    run("memory", tmp_path, scenario)
