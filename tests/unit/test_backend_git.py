"""A git repository as an export (nfsd.backends.git)."""

import errno
import subprocess

import pytest

from nfsd.backend_suite.scenarios import SCENARIOS, Trial, refused
from nfsd.backend_suite.trying import WAYS, Entry
from tests.unit.test_backends_served import run


class Repository:
    """A repository with a work tree."""

    def __init__(self, place):
        self.place = place
        place.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *arguments):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=self.place, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    def commit(self, files):
        for name, data in files.items():
            (self.place / name).parent.mkdir(parents=True, exist_ok=True)
            (self.place / name).write_bytes(data)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "a change")
        return self.git("rev-parse", "HEAD")

    def entry(self):
        return Entry({"backend": "git", "options": {"repository": str(self.place)}})


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path / "repository")


@pytest.mark.parametrize("way", WAYS, ids="-".join)
def test_branches_tags_and_commits_are_directories(tmp_path, repository, way):
    data = bytes(range(256)) * 2000
    (repository.place / "link").symlink_to("deep/data")
    first = repository.commit({"deep/data": data, "README": b"one\n"})
    (repository.place / "run").write_bytes(b"#!")
    (repository.place / "run").chmod(0o755)
    repository.git("tag", "v1")
    repository.git("tag", "-a", "-m", "annotated", "v1a")
    repository.git("checkout", "-q", "-b", "topic/one")
    second = repository.commit({"README": b"two\n"})

    async def test(server):
        async with server.connect(way) as fs:
            assert sorted(await fs.listdir()) == ["branches", "commits", "tags"]
            assert sorted(await fs.listdir("branches")) == ["main", "topic%2Fone"]
            assert sorted(await fs.listdir("tags")) == ["v1", "v1a"]
            assert set(await fs.listdir("commits")) == {first, second}
            for top in ("branches/main", "tags/v1", "tags/v1a", f"commits/{first}"):
                assert sorted(await fs.listdir(top)) == ["README", "deep", "link"]
                assert await fs.read_bytes(f"{top}/deep/data") == data
                assert await fs.read_bytes(f"{top}/README") == b"one\n"
                assert await fs.readlink(f"{top}/link") == "deep/data"
            for top in ("branches/topic%2Fone", f"commits/{second}"):
                assert await fs.read_bytes(f"{top}/README") == b"two\n"
                assert (await fs.stat(f"{top}/run")).st_mode & 0o777 == 0o555
            assert (await fs.stat("tags/v1/README")).st_mode & 0o777 == 0o444
            assert (await fs.stat("tags/v1/README")).st_mtime == int(repository.git("show", "-s", "--format=%ct", "v1"))
            for missing in ("branches/none", "commits/main", f"commits/{'0' * 40}", "tags/v1/none", "other"):
                await refused(fs.stat(missing), 2)
            await refused(fs.write_bytes("tags/v1/new", b""), 30, 13)
            for place in ("", "tags/v1"):
                for scenario in SCENARIOS:
                    await scenario(Trial(fs, place))

    run(tmp_path, repository.entry(), test)


@pytest.mark.parametrize("way", [("tcp", "3"), ("tcp", "4.1")], ids="-".join)
def test_a_branch_that_moves_is_seen(tmp_path, repository, way):
    repository.commit({"a/f": b"one", "same": b"same"})

    async def test(server):
        async with server.connect(way) as fs:
            assert await fs.read_bytes("branches/main/a/f") == b"one"
            before = await fs.stat("branches/main/a/f")
            kept = await fs.stat("branches/main/same")
            repository.commit({"a/f": b"longer than one", "b": b"b"})
            assert await fs.read_bytes("branches/main/a/f") == b"longer than one"
            after = await fs.stat("branches/main/a/f")
            assert after.st_ctime_ns > before.st_ctime_ns
            assert after.st_ino == before.st_ino
            assert (await fs.stat("branches/main/same")).st_ctime_ns == kept.st_ctime_ns
            assert sorted(await fs.listdir("branches/main")) == ["a", "b", "same"]

    run(tmp_path, repository.entry(), test)


def test_submodules_are_empty_directories(tmp_path, repository):
    other = Repository(tmp_path / "other")
    other.commit({"f": b"f"})
    repository.git("submodule", "--quiet", "add", str(other.place), "sub")
    repository.commit({"g": b"g"})

    async def test(server):
        async with server.connect(("tcp", "4.1")) as fs:
            assert await fs.listdir("branches/main/sub") == []
            await refused(fs.stat("branches/main/sub/f"), 2)

    run(tmp_path, repository.entry(), test)


def test_what_is_no_repository_is_absent(tmp_path):
    async def test(server):
        (absent,) = server.daemon.service.absent.values()
        assert "git" in absent.why

    more = [{"backend": "memory", "pseudo": "/second"}]
    run(tmp_path, Entry({"backend": "git", "options": {"repository": str(tmp_path)}}, more=more), test)


def test_a_branch_has_one_name(tmp_path, repository):
    repository.commit({"f": b"1"})
    repository.git("branch", "a/b")

    async def test(server):
        async with server.connect(("tcp", "3")) as fs:
            assert await fs.read_bytes("branches/a%2Fb/f") == b"1"
            for name in ("a%2fb", "%61%2Fb", "%6Dain"):
                await refused(fs.read_bytes(f"branches/{name}/f"), errno.ENOENT)

    run(tmp_path, repository.entry(), test)
