"""deploy/ and debian/ say what the rest of the project says: configurations that are good, the unit's capabilities."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from nfsd.config import Config
from nfsd.config_file import parse
from tests.support.installed import REPO

UNIT = (REPO / "systemd/rdma-nfsd.service").read_text()


def manifests() -> dict[str, Any]:
    return {each["kind"]: each for each in yaml.safe_load_all((REPO / "deploy/kubernetes.yaml").read_text())}


def good(text: str, tmp_path: Path) -> Config:
    """The configuration, with directories that exist."""
    for name in ("/export", "/srv/nfs"):
        text = text.replace(f"path: {name}\n", f"path: {tmp_path}\n").replace(f"path: {name} ", f"path: {tmp_path} ")
    return parse(text, "exports.yaml")


def test_the_configuration_in_the_container_is_good(tmp_path: Path) -> None:
    config = good((REPO / "deploy/exports.yaml").read_text(), tmp_path)
    recipe = (REPO / "deploy/Containerfile").read_text()
    (volumes,) = re.findall(r"^VOLUME (.*)$", recipe, re.MULTILINE)
    assert yaml.safe_load(volumes) == ["/export", config.server.state_dir]
    exposed = set(re.findall(r"(\d+)/tcp", recipe))
    assert {str(entry.address).rpartition(":")[2] for entry in config.server.listen} | {
        str(config.server.mountd_port)
    } == exposed


def test_the_configuration_in_kubernetes_is_good_and_what_it_takes_is_there(tmp_path: Path) -> None:
    found = manifests()
    config = good(found["ConfigMap"]["data"]["exports.yaml"], tmp_path)
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"export": "/export", "state": config.server.state_dir, "configuration": "/etc/rdma-nfsd"}
    listening = {int(str(entry.address).rpartition(":")[2]) for entry in config.server.listen}
    assert listening == {port["port"] for port in found["Service"]["spec"]["ports"]}
    assert listening < {port["containerPort"] for port in container["ports"]}
    # Pods of most clusters are in 10.0.0.0/8, and root is not squashed: as it stands, nobody is let in (RFC 5737).
    assert config.exports[0].clients == ("192.0.2.0/24",)
    volume = found["PersistentVolume"]
    assert volume["spec"]["nfs"] == {"server": found["Service"]["spec"]["clusterIP"], "path": config.exports[0].pseudo}
    assert found["PersistentVolumeClaim"]["spec"]["volumeName"] == volume["metadata"]["name"]


def test_kubernetes_asks_for_health_where_the_server_answers(tmp_path: Path) -> None:
    found = manifests()
    config = good(found["ConfigMap"]["data"]["exports.yaml"], tmp_path)
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert config.server.metrics.listen == f"0.0.0.0:{ports['metrics']}"


@pytest.mark.parametrize("version", ["1.30", kubernetes_validate.latest_version()])
def test_the_manifest_is_kubernetes_own_form(version: str) -> None:
    """Strictly: what a schema does not know, as a misspelt name, is refused, where a cluster would pass over it."""
    found = manifests()
    for manifest in found.values():
        kubernetes_validate.validate(manifest, version, strict=True)
    (container,) = found["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    container["readynessProbe"] = container.pop("readinessProbe")
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(found["StatefulSet"], version, strict=True)


def test_a_container_has_the_capabilities_of_the_unit() -> None:
    (container,) = manifests()["StatefulSet"]["spec"]["template"]["spec"]["containers"]
    bounding = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT, re.MULTILINE)
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    assert {f"CAP_{name}" for name in container["securityContext"]["capabilities"]["add"]} == set(
        " ".join(bounding).split()
    )


def test_the_package_has_the_programs_version_and_a_good_configuration(tmp_path: Path) -> None:
    version = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["version"]
    assert (REPO / "debian/changelog").read_text().startswith(f"rdma-nfsd ({version}) ")
    text = (REPO / "debian/exports.yaml").read_text().replace("@UID@", "999").replace("@GID@", "998")
    config = good(text, tmp_path)
    assert (config.exports[0].anonuid, config.exports[0].anongid) == (999, 998)
    state = re.search(r"^StateDirectory=(.*)$", UNIT, re.MULTILINE)
    assert state
    assert config.server.state_dir == f"/var/lib/{state[1]}"


@pytest.mark.parametrize(
    "script",
    [
        "debian/rdma-nfsd.postinst",
        "debian/rdma-nfsd.postrm",
        "tests/distributions/enter.sh",
        "tests/distributions/run.sh",
        "tests/distributions/steps.sh",
    ],
)
def test_scripts_are_shell(script: str) -> None:
    subprocess.run(["sh", "-n", REPO / script], check=True)


def test_purging_removes_what_the_server_wrote_and_nothing_else(tmp_path: Path) -> None:
    state, etc = tmp_path / "state", tmp_path / "etc"
    alone, shared = state / "dirs-0123", state / "dirs-4567"
    for directory in (etc, alone, shared, state / "export"):
        directory.mkdir(parents=True)
    (etc / "exports.yaml").touch()
    written = (
        "lock",
        "control",
        "handle.key",
        "handle.key.new",
        "server-id",
        "nfs4-clients.sqlite",
        "places.sqlite-wal",
    )
    for directory in (state, alone, shared):
        for name in written:
            (directory / name).touch()
    (state / "export" / "thesis").write_text("mine")
    (shared / "notes").write_text("mine")
    script = (REPO / "debian/rdma-nfsd.postrm").read_text().replace("#DEBHELPER#", "")
    script = script.replace("/var/lib/rdma-nfsd", str(state)).replace("/etc/rdma-nfsd", str(etc))
    for _ in range(2):  # dpkg may run it again
        subprocess.run(["sh", "-c", script, "postrm", "purge"], check=True)
        assert sorted(path.relative_to(state).as_posix() for path in state.rglob("*")) == [
            "dirs-4567",
            "dirs-4567/notes",
            "export",
            "export/thesis",
        ]
        assert not etc.exists()


def test_purging_leaves_no_directory_where_nothing_else_was(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "dirs-0123").mkdir(parents=True)
    for path in (state / "lock", state / "handle.key", state / "dirs-0123" / "server-id"):
        path.touch()
    script = (REPO / "debian/rdma-nfsd.postrm").read_text().replace("#DEBHELPER#", "")
    script = script.replace("/var/lib/rdma-nfsd", str(state)).replace("/etc/rdma-nfsd", str(tmp_path / "etc"))
    subprocess.run(["sh", "-c", script, "postrm", "purge"], check=True)
    assert not state.exists()
