"""Batches are a pure function of the sample index; bad sources get one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.data import Corpus, read_source
from engine.errors import ConfigError


def test_batches_do_not_depend_on_how_they_are_asked_for() -> None:
    data = Corpus(bytes(range(256)) * 20, seq_len=8, seed=3)
    whole, targets = data.batch(5, 6)
    parts = torch.cat([data.batch(5 + index, 1)[0] for index in range(6)])
    assert torch.equal(whole, parts)
    assert torch.equal(whole[:, 1:], targets[:, :-1])


def test_another_seed_shuffles_differently() -> None:
    text = bytes(range(256)) * 20
    assert not torch.equal(Corpus(text, 8, 1).batch(0, 8)[0], Corpus(text, 8, 2).batch(0, 8)[0])


def test_the_standard_library_is_real_text() -> None:
    text = read_source("stdlib", 100_000)
    assert len(text) == 100_000
    assert b"import " in text


def test_folders_are_read_in_order_and_binaries_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first ")
    (tmp_path / "c.bin").write_bytes(b"\0\1\2")
    assert read_source(str(tmp_path), 1_000) == b"first second"
    assert read_source(str(tmp_path / "b.txt"), 3) == b"sec"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "missing", "must be 'stdlib', a text file or a folder"),
        (lambda folder: folder, "holds no text"),
    ],
)
def test_bad_sources_are_named(tmp_path: Path, make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=message):
        read_source(str(make(tmp_path)), 1_000)


def test_a_text_shorter_than_a_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least seq_len"):
        Corpus(b"short", seq_len=8, seed=0)
