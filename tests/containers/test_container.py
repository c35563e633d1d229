"""The container that deploy/Containerfile builds serves what docs/containers.md says, with each runtime."""

from pathlib import Path

import pytest

from tests.containers import BUILD, PAGE, Engine, default_engine, essence, missing, page_blocks, play
from tests.transcripts import essence as usual_essence

pytestmark = [pytest.mark.container, pytest.mark.timeout(3600)]


@pytest.fixture(scope="module", autouse=True)
def image() -> None:
    """The image, built as the page says."""
    assert f"\n{BUILD}\n" in PAGE.read_text()
    if why := missing():
        pytest.fail(f"the container cannot be built here: {why}")
    default_engine().build()


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_the_container_serves_as_the_page_shows(runtime: str, tmp_path: Path) -> None:
    (block,) = page_blocks()
    shown = PAGE.read_text()[block.begin : block.end]
    printed = play(block, Engine(runtime), tmp_path)
    assert essence(usual_essence(shown)) == essence(usual_essence(printed)), "python -m tests.containers writes it anew"


def test_without_the_capability_to_open_by_handle_it_serves_all_the_same(tmp_path: Path) -> None:
    """File handles are then places that the server remembers, as on overlayfs; it says so, and survives a restart."""
    with default_engine().stage(tmp_path) as stage:
        stage.run(
            "podman run --detach --name nfs --network host -v /srv/nfs:/export -v rdma-nfsd-state:/var/lib/rdma-nfsd "
            "rdma-nfsd"
        )
        assert "may not open files by handle (no CAP_DAC_READ_SEARCH)" in stage.run("podman logs nfs")
        assert stage.run("rdma-nfsd cat rdma://127.0.0.1/export/hello.txt") == "Hello over NFS.\n"
        stage.run("podman restart nfs")
        assert stage.run("rdma-nfsd cat rdma://127.0.0.1/export/hello.txt") == "Hello over NFS.\n"
