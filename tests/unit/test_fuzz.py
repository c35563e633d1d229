"""The short run of the fuzz targets: what is kept of the long runs (docs/fuzzing.md), and a few thousand mutations."""

from __future__ import annotations

import pytest

from nfsd.exports import ExportTable
from nfsd.vfs.types import Credential
from rpcrdma.rpc import secured
from rpcrdma.wire import transport_header
from rpcrdma.wire.header import MessageHeader
from rpcrdma.xdr import native
from tests.fuzz import corpus, iwarp_model, protected_calls
from tests.fuzz.mutate import inputs
from tests.fuzz.seeds import SEEDS
from tests.support import nfs3_truth

MUTATIONS = {
    "version_one": 1500,
    "version_two": 1500,
    "iwarp": 3000,
    "calls": 800,
    "compounds": 800,
    "callers": 400,
    "gss": 3000,
    "protected": 200,
}


@pytest.fixture(params=sorted(corpus.TARGETS))
def name(request):
    return request.param


@pytest.fixture
def target(name):
    made = corpus.TARGETS[name]()
    yield made
    made.close()


def test_what_once_broke_a_target_does_so_no_more(name, target):
    for _, data in corpus.regressions(name):
        target.one(data)


def test_the_kept_corpus_and_its_mutations(name, target):
    kept = list(corpus.kept(name))
    assert len(kept) > 100
    for data in kept:
        target.one(data)
    for data in inputs([*kept, *SEEDS[name]()], MUTATIONS[name], corpus.TARGETS[name].largest):
        target.one(data)


def test_the_kept_corpora_are_small():
    sizes = [path.stat().st_size for path in corpus.KEPT.iterdir()]
    assert len(sizes) == len(corpus.TARGETS)
    assert sum(sizes) < 500_000


def broken(name, count):
    """Run seeds and mutations of them until one breaks the target."""
    target, seeds = corpus.TARGETS[name](), list(SEEDS[name]())

    def run():
        for data in [*seeds, *inputs(seeds, count, corpus.TARGETS[name].largest)]:
            target.one(data)

    try:
        with pytest.raises((AssertionError, ValueError, TypeError, IndexError)):
            run()
    finally:
        target.close()


def test_a_decoder_that_misreads_chunks_is_found(monkeypatch):
    right = transport_header.decode

    def wrong(view, most):
        header = right(view, most)
        for chunk in header.writes:
            chunk[:] = [(handle, length, target & 0xFFFFFFFF) for handle, length, target in chunk]
        return header

    monkeypatch.setattr(transport_header, "decode", wrong)
    broken("version_one", 2000)


def test_a_header_that_forgets_its_handle_is_found(monkeypatch):
    right = transport_header.decode

    def wrong(view, most):
        header = right(view, most)
        if isinstance(header, MessageHeader):
            header.inv_handle &= 0xFFFFFF
        return header

    monkeypatch.setattr(transport_header, "decode", wrong)
    broken("version_two", 2000)


def test_a_reply_that_returns_its_chunks_unused_is_found(monkeypatch):
    right = transport_header.encode_reply

    def wrong(buffer, call, credit, procedure, writes, reply):
        return right(buffer, call, credit, procedure, (), reply)

    monkeypatch.setattr(transport_header, "encode_reply", wrong)
    broken("version_one", 2000)


def test_a_codec_that_differs_from_the_other_one_is_found(monkeypatch):
    class Lenient(native.Decoder):
        def __new__(cls, data, chunks=(), offset=0, strict=False):
            return super().__new__(cls, data, chunks, offset, False)

    monkeypatch.setattr(native, "Decoder", Lenient)
    broken("version_one", 2000)


@pytest.mark.parametrize("rule", ["_begin_write", "_begin_send", "_begin_request", "_begin_response", "_answer"])
def test_a_connection_that_does_not_as_the_model_does_is_found(monkeypatch, rule):
    """The comparison has teeth: with any one rule of the model changed, model and connection part ways."""
    right = getattr(iwarp_model.Model, rule)

    def careless(self):
        try:
            right(self)
        except iwarp_model.Violation:
            raise iwarp_model.Violation((0x7F, 0)) from None

    monkeypatch.setattr(iwarp_model.Model, rule, careless)
    broken("iwarp", 5000)


def test_answers_that_are_not_true_are_found(monkeypatch):
    right = nfs3_truth.attributes

    def wrong(node):
        found = right(node)
        found.fsid ^= 1
        return found

    monkeypatch.setattr(nfs3_truth, "attributes", wrong)
    broken("calls", 0)


def test_a_squash_that_forgets_the_groups_is_found(monkeypatch):
    right = ExportTable._squashed

    def wrong(self, access, uid, gid, gids, peer_address):
        if 0 in gids:
            return Credential(uid or 7, gid or 7, gids)
        return right(self, access, uid, gid, (), peer_address)

    monkeypatch.setattr(ExportTable, "_squashed", wrong)
    broken("callers", 200)


@pytest.mark.parametrize("target", ["gss", "protected"])
def test_arguments_that_are_not_checked_are_found(monkeypatch, target):
    right = secured.unwrapped

    def wrong(sealer, body, mic):
        return body if mic else right(sealer, body, mic)

    monkeypatch.setattr(secured, "unwrapped", wrong)
    broken(target, 500)


@pytest.mark.parametrize("rule", ["fresh", "take"])
def test_a_sequence_window_that_is_not_as_the_model_has_it_is_found(monkeypatch, rule):
    right = getattr(protected_calls.Model, rule)

    def wrong(self, sequence):
        return right(self, sequence + 1)

    monkeypatch.setattr(protected_calls.Model, rule, wrong)
    broken("protected", 500)


def test_signed_and_protected_calls_are_answered_natively():
    target = corpus.TARGETS["protected"]()
    try:
        for data in SEEDS["protected"]():
            target.one(data)
        for security in ("krb5", "krb5i", "krb5p"):
            assert target.reached[f"{security} SUCCESS natively"] > 40
            assert security == "krb5" or target.reached[f"{security} GARBAGE_ARGS"] > 10
        assert target.reached["dropped"] > 10
    finally:
        target.close()


def test_the_calls_that_can_be_are_answered_natively():
    target = corpus.TARGETS["calls"]()
    try:
        for data in SEEDS["calls"]():
            target.one(data)
        # GETATTR, SETATTR, LOOKUP, ACCESS, READLINK, READ, WRITE, CREATE, REMOVE and COMMIT
        numbers = (1, 2, 3, 4, 5, 6, 7, 8, 12, 21)
        assert {f"{kind} {number}" for kind in ("tcp", "rdma") for number in numbers} == set(target.reached)
    finally:
        target.close()


def test_many_compounds_are_answered_natively_and_many_are_not():
    target = corpus.TARGETS["compounds"]()
    try:
        for data in SEEDS["compounds"]():
            target.one(data)
        assert min(target.reached.values()) > 100
        assert len(target.reached) == 2
    finally:
        target.close()
