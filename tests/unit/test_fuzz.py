"""The short run of the fuzz targets: what is kept of the long runs (docs/fuzzing.md), and a few thousand mutations."""

from __future__ import annotations

import pytest

from rpcrdma.wire import chunks, version_two
from rpcrdma.xdr import native
from tests.fuzz import corpus, iwarp_model
from tests.fuzz.mutate import inputs
from tests.fuzz.seeds import SEEDS

MUTATIONS = {"version_one": 1500, "version_two": 1500, "iwarp": 3000}


@pytest.mark.parametrize("name", sorted(corpus.TARGETS))
def test_what_once_broke_a_target_does_so_no_more(name):
    target = corpus.TARGETS[name]()
    for _, data in corpus.regressions(name):
        target.one(data)


@pytest.mark.parametrize("name", sorted(corpus.TARGETS))
def test_the_kept_corpus_and_its_mutations(name):
    target = corpus.TARGETS[name]()
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

    with pytest.raises((AssertionError, ValueError, TypeError, IndexError)):
        run()


def test_a_decoder_that_misreads_chunks_is_found(monkeypatch):
    right = chunks._decode_segments

    def wrong(view, offset, most):
        return [(handle, length, target & 0xFFFFFFFF) for handle, length, target in right(view, offset, most)]

    monkeypatch.setattr(chunks, "_decode_segments", wrong)
    broken("version_one", 2000)


def test_a_header_that_forgets_its_handle_is_found(monkeypatch):
    right = version_two.MessageHeader.__init__

    def wrong(self, xid, credit, procedure, direction, handle, *rest):
        right(self, xid, credit, procedure, direction, handle & 0xFFFFFF, *rest)

    monkeypatch.setattr(version_two.MessageHeader, "__init__", wrong)
    broken("version_two", 2000)


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
