"""The file of rules: what is wrong with one is told with its line and a remedy; and how rules are asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from nfsd import cli
from nfsd.config_file import ConfigError
from nfsd.faults.calls import least, names_of, read
from nfsd.faults.choosing import Faults
from nfsd.faults.control import FaultCollector, commands
from nfsd.faults.rules import ACTIONS, Rule, load, parse
from nfsd.protocol import nfs3, nfs4
from nfsd.protocol.nfs4_ops import OPERATIONS
from rpcrdma.xdr import Decoder
from rpcrdma.xdr.schema import node_of
from tests.unit.nfs_client_support import Rig

WRONG = {
    "": "f: is empty; it needs rules:, as in rules: []",
    "rules: [{delay: 1}": "f:1: is not YAML",
    "- delay: 1": "must be a mapping with seed, rules",
    "rules:\n- {}\n": "f:2: rules[0]: does nothing; add one of delay",
    "rules:\n- dealy: 1\n": "f:2: rules[0].dealy: unknown key; did you mean 'delay'?",
    "rules:\n- delay: soon\n": "f:2: rules[0].delay: must be a number of seconds",
    "rules:\n- delay: 3601\n": "must be at most 3600",
    "rules:\n- delay: .inf\n": "rules[0].delay",
    "rules:\n- delay: 1\n  clients: [nowhere]\n": "f:3: rules[0].clients: 'nowhere' is no address or network; write",
    "rules:\n- delay: 1\n  clients: []\n": "must have at least one entry",
    "rules:\n- delay: 1\n  calls: [WIRTE]\n": "there is no call 'WIRTE' of nfs; did you mean 'WRITE'?",
    "rules:\n- delay: 1\n  calls: [MNT]\n": "there is no call 'MNT' of nfs",
    "rules:\n- delay: 1\n  programs: [http]\n": "there is no 'http'; there are nfs, mountd",
    "rules:\n- drop: everything\n": "must be 'call' or 'reply', not 'everything'",
    "rules:\n- error: NFS4ERR_DELY\n  calls: [OPEN]\n": "did you mean 'NFS4ERR_DELAY'?",
    "rules:\n- error: NFS4ERR_DELAY\n": "needs the operations that fail; write for example calls: [OPEN]",
    "rules:\n- error: NFS4ERR_DELAY\n  calls: [OPEN]\n  versions: [3]\n": "is one of NFSv4; write versions: [4]",
    "rules:\n- error: NFS3_OK\n": "there is no error 'NFS3_OK'",
    "rules:\n- credits: 1\n  transports: [tcp]\n": "is for RDMA connections only; write transports: [rdma]",
    "rules:\n- read_at_most: 1\n  calls: [WRITE]\n": "is for READ and READ_PLUS; write calls: [READ]",
    "rules:\n- leave_out: [FSID]\n  calls: [GETATTR]\n  versions: [3]\n": "is for NFSv4; write versions: [4]",
    "rules:\n- leave_out: [FSID]\n": "is for GETATTR and READDIR; write calls: [GETATTR, READDIR]",
    "rules:\n- leave_out: [FSIDS]\n  calls: [GETATTR]\n": "no attribute 'FSIDS'; did you mean 'FSID'",
    "rules:\n- drop: reply\n  credits: 1\n": "leaves no reply for the other action; make it a rule of its own",
    "rules:\n- callback: unsent\n  delay: 1\n": "is for callbacks, everything else for calls",
    "rules:\n- callback: unsent\n  calls: [READ]\n": "there is no call 'READ'",
    "rules:\n- {name: a, delay: 1}\n- {name: a, delay: 1}\n": "f:3: rules[1].name: 'a' stands here twice; rename one",
    "rules:\n- probability: 0\n  delay: 1\n": "must be more than 0",
    "seed: -1\nrules: []\n": "f:1: seed: must be at least 0",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_mistake_has_a_line_and_a_remedy(text: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        parse(text, "f")
    assert WRONG[text] in str(wrong.value)


def test_rules_without_mistakes() -> None:
    rules = parse("seed: 7\nrules:\n- {credits: 0}\n- {callback: unheard, calls: [CB_RECALL]}\n", "f")
    assert rules.seed == 7
    assert [rule.name for rule in rules.rules] == ["rule 1", "rule 2"]
    assert [rule.actions for rule in rules.rules] == [["credits"], ["callback"]]
    assert set(ACTIONS) <= set(Rule.__dataclass_fields__)


def test_the_program_does_not_start_with_a_file_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("rules:\n- {dealy: 1}\n")
    (tmp_path / "data").mkdir()
    assert cli.main(["serve", str(tmp_path / "data"), "--faults", str(file)]) == 2
    assert f"{file}:2: rules[0].dealy: unknown key" in capsys.readouterr().err
    assert cli.main(["serve", str(tmp_path / "data"), "--faults", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_every_failure_of_every_procedure_can_be_decoded() -> None:
    for row in nfs3.PROCEDURES.values():
        for status in nfs3.nfsstat3 if row.results else ():
            decoder = Decoder(least(node_of(row.results), status))
            if status:
                assert decoder.decode(row.results).status == status
                decoder.finish(strict=True)
    for operation in OPERATIONS.values():
        for error in nfs4.nfsstat4:
            decoder = Decoder(least(node_of(operation.results), error))
            if error:
                decoder.decode(operation.results)
                decoder.finish(strict=True)


def test_what_is_no_call_is_left_alone() -> None:
    for octets in (b"", bytes(39), bytes(400), b"\xff" * 400):
        assert read((memoryview(octets), ())) is None
    header = b"\0\0\0\1\0\0\0\0\0\0\0\2\0\1\x86\xa3\0\0\0\4\0\0\0\1" + bytes(16)
    for rest in (b"", b"\xff" * 64, bytes(8) + b"\0\0\0\2\0\0\0\x16\xff\xff\xff\xff", bytes(8) + b"\xff\xff\xff\xff"):
        call = read((memoryview(header + rest), ()))
        assert call is not None
        assert call.operations == ()
    assert {"READ", "COMPOUND", "OPEN"} <= names_of(["nfs"])
    assert "LOCK" in names_of(["nlm"])


def test_rules_change_by_the_control_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rig = Rig(tmp_path, "tcp", "3")
    rig.faults = Faults(parse("rules: [{name: slow, delay: 0.001, calls: [GETATTR]}]", "first.yaml"), "first.yaml")
    rules, wrong = tmp_path / "second.yaml", tmp_path / "wrong.yaml"
    rules.write_text("rules: [{name: other, delay: 0.001, calls: [ACCESS]}]")
    wrong.write_text("rules: [{delay: -1}]")

    async def test() -> None:
        async def run(*arguments: str) -> tuple[int, str, str]:
            config = ("--config", str(tmp_path / "exports.yaml"))
            status = await asyncio.to_thread(cli.main, ["faults", *config, *arguments])
            return status, *capsys.readouterr()

        assert "(FAULTS: this server misbehaves on purpose: 1 rules of first.yaml, seed 0)" in rig.daemon.ready_line
        async with rig.connect() as fs:
            await fs.stat("")
        _, out, _ = await run()
        assert out.startswith("first.yaml, seed 0\nslow: acted ")
        assert "delay: 0.001" in out
        status, out, _ = await run(str(rules), "--json")
        assert (status, json.loads(out)["rules"][0]["name"]) == (0, "other")
        status, _, err = await run(str(wrong))
        assert status == 1
        assert f"{wrong}:1: rules[0].delay: must be more than 0" in err
        assert [use.rule.name for use in rig.faults.uses] == ["other"], "a file with mistakes changes nothing"
        assert (await run("--clear"))[1] == "no rules: this server behaves until it gets some\n"
        (metric,) = FaultCollector(rig.faults).collect()
        assert [(dict(one.labels), one.value > 0) for one in metric.samples] == [
            ({"rule": "slow", "action": "delay"}, True)
        ]

    rig.run(test)


def test_a_server_that_behaves_takes_no_rules(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("rules: []")
    answer = commands(None)["faults"]
    with pytest.raises(ValueError, match="start it with --faults"):
        asyncio.run(answer({"file": str(rules)}))  # type: ignore[arg-type]
    assert load(str(rules)).rules == ()
