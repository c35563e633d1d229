"""The server notices what others do to a file while it changes the file, or takes its name."""

import os
import stat

import pytest

from nfsd.vfs.types import Credential
from tests.unit import vfs_support
from tests.unit.test_nfs3_native import handle, name
from tests.unit.test_nfs3_native_names import REMOVE
from tests.unit.test_waiting_calls import SUCCESS, on_disk, until, waiting

RENAME = 14
CALLER = Credential(1001, 1001)


@pytest.mark.parametrize("operation", ["allocate", "deallocate"])
def test_a_mode_that_changes_while_space_is_reserved_is_noticed(operation, tmp_path):
    async def scenario(both, node):
        path = os.path.join(both.path, "a")
        os.chmod(path, 0o4666)
        opened = await both.service.open(CALLER, node, read=False, write=True)
        await both.service.look(node)
        epoch = node.inode.epoch
        # The kernel clears the bit, between our two looks.
        await getattr(both.service, operation)(opened, 0, 4096)
        opened.release()
        assert not os.stat(path).st_mode & stat.S_ISUID
        assert node.inode.epoch == epoch + 1

    on_disk(tmp_path, scenario)


@pytest.mark.parametrize("procedure", [REMOVE, RENAME])
def test_a_file_that_comes_into_use_while_its_name_is_taken_is_not_to_be_delegated(procedure, tmp_path):
    async def scenario(both, _):
        for each in ("victim", "other"):
            with open(os.path.join(both.path, each), "w") as file:
                file.write(each)
        serial = both.root.inode.serial
        await serial.acquire()  # so that the change waits
        arguments = handle(both.root) + name("victim")
        if procedure == RENAME:
            arguments = handle(both.root) + name("other") + arguments
        both.native.send(procedure, arguments)
        await until(lambda: waiting(both) == 1)
        # Nobody has used it so far; now somebody opens it.
        node, _ = await both.service.lookup(vfs_support.ROOT, both.root, b"victim")
        assert node.inode.changing == 1
        serial.release()
        assert (await both.native.reply())[24:28] == SUCCESS
        assert node.inode.changing == 0
        with pytest.raises(OSError, match="Stale"):
            await both.service.attributes(node)
        left = "other" if procedure == REMOVE else "victim"
        assert sorted(os.listdir(both.path)) == ["a", left]
        with open(os.path.join(both.path, left)) as file:
            assert file.read() == "other"

    on_disk(tmp_path, scenario)
