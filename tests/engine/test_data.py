"""Text sources, windows and the held-out part: batches are a pure function of the sample index."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from db.run_config import DataConfig, RunConfig
from engine.data import Corpus
from engine.data.mixing import mix, shuffled
from engine.data.source import read_tokens
from engine.data.text import read_documents
from engine.data.tokens import TokenText, joined
from engine.data.windows import Windows
from engine.errors import ConfigError

COUNTED = TokenText(tokens=np.arange(5_000), bounds=np.array([0, 5_000]), vocab_size=5_000)


def config(*, seq_len: int = 8, packed: bool = False, eval_every: int = 0, seed: int = 0) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"seq_len": seq_len},
            "train": {"eval_every": eval_every, "seed": seed},
            "data": {"packed": packed},
        }
    )


@given(first=st.integers(0, 10**12), counts=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers())
def test_windows_do_not_depend_on_how_they_are_asked_for(first: int, counts: list[int], seed: int) -> None:
    data = Windows(COUNTED, seq_len=8, seed=seed)
    whole = data.batch(first, sum(counts))
    starts = [first + sum(counts[:index]) for index in range(len(counts))]
    parts = [Windows(COUNTED, 8, seed).batch(start, count) for start, count in zip(starts, counts, strict=True)]
    assert torch.equal(whole.inputs, torch.cat([part.inputs for part in parts]))
    assert torch.equal(whole.targets, torch.cat([part.targets for part in parts]))
    assert torch.equal(whole.inputs + 1, whole.targets)
    assert data.num_targets(first, sum(counts)) == whole.num_targets == 8 * sum(counts)
    assert whole.positions is None
    assert whole.documents is None


def test_another_seed_shuffles_differently() -> None:
    assert not torch.equal(Windows(COUNTED, 8, 1).batch(0, 8).inputs, Windows(COUNTED, 8, 2).batch(0, 8).inputs)


def test_byte_windows_stay_where_they_were() -> None:
    # Runs made before documents and tokenizers were known must reproduce: a digest of their samples.
    text = bytes(index * index % 251 for index in range(10_000))
    data = Corpus(joined([np.frombuffer(text, dtype=np.uint8)], 256), config(seq_len=16, seed=3))
    batch = data.batch(1_000, 64)
    numbers = torch.cat([batch.inputs, batch.targets]).numpy().astype("<i8").tobytes()
    assert hashlib.sha256(numbers).hexdigest() == "54e42b26a46ca06667bff43b2d235773cf696222806c548195cc2aa88fed9596"


@pytest.mark.parametrize("key", [0, 1, 2**63, 2**64 - 1])
def test_a_shuffle_sorts_by_mixed_numbers(key: int) -> None:
    assert shuffled(100, key).tolist() == sorted(range(100), key=lambda item: mix(key + item))


def test_the_standard_library_is_real_text() -> None:
    documents = read_documents("stdlib", 100_000)
    assert sum(map(len, documents)) == 100_000
    assert len(documents) > 1
    assert b"import " in documents[0]


def test_folders_are_read_in_order_and_binaries_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"second")
    (tmp_path / "a.txt").write_bytes(b"first ")
    (tmp_path / "c.bin").write_bytes(b"\0\1\2")
    (tmp_path / "d.txt").write_bytes(b"")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "f.txt").write_bytes(b"third")
    assert read_documents(str(tmp_path), 1_000) == [b"first ", b"second", b"third"]
    assert read_documents(str(tmp_path), 8) == [b"first ", b"se"]
    assert read_documents(str(tmp_path / "b.txt"), 3) == [b"sec"]


@pytest.mark.parametrize(
    ("packed", "tokens", "bounds"),
    [
        (False, b"first second", [0, 6, 12]),  # one long text
        (True, b"first \0second\0", [0, 7, 14]),  # each document ends in the byte that text does not hold
    ],
)
def test_bytes_become_documents(tmp_path: Path, packed: bool, tokens: bytes, bounds: list[int]) -> None:
    (tmp_path / "a.txt").write_bytes(b"first ")
    (tmp_path / "b.txt").write_bytes(b"second")
    text = read_tokens(DataConfig(source=str(tmp_path), packed=packed), 256)
    assert text.tokens.tobytes() == tokens
    assert text.bounds.tolist() == bounds


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"source": "{folder}/missing"}, "must be 'stdlib', a text file or a folder, given '.*missing'"),
        ({"source": "{folder}"}, "holds no text"),
        ({"source": "stdlib", "format": "megatron"}, "the common path of an .idx and a .bin file, found no stdlib.idx"),
        ({"tokenizer": "{folder}/missing.json"}, "must be 'bytes' or the path of a tokenizer.json, given"),
    ],
)
def test_bad_sources_are_named(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    filled = {name: value.format(folder=tmp_path) for name, value in data.items()}
    with pytest.raises(ConfigError, match=message):
        read_tokens(DataConfig(**filled), 256)


def test_bytes_need_a_vocabulary_of_bytes() -> None:
    with pytest.raises(ConfigError, match="needs vocab_size >= 256, given 128"):
        read_tokens(DataConfig(), 128)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("eval_every", [0, 5])
def test_a_text_shorter_than_a_sample_is_refused(packed: bool, eval_every: int) -> None:
    text = joined([np.frombuffer(b"short", dtype=np.uint8)], 256)
    with pytest.raises(ConfigError, match="the text must have at least"):
        Corpus(text, config(packed=packed, eval_every=eval_every))


@pytest.mark.parametrize(("tokens", "bad"), [([1, 2, 3, 700], 700), ([1, 2, -3, 4], -3)])
def test_no_token_beyond_the_vocabulary_is_handed_out(tokens: list[int], bad: int) -> None:
    text = TokenText(tokens=np.array(tokens), bounds=np.array([0, 4]), vocab_size=700)
    with pytest.raises(ConfigError, match=f"below the model's vocab_size 700, given {bad}"):
        text.check()
    assert text.take(0, 2).tolist() == [1, 2]


@pytest.mark.parametrize("packed", [False, True])
def test_evaluation_text_is_not_trained_on(packed: bool) -> None:
    bounds = np.array([0, 1_000, 4_000, 4_950, 5_000])
    text = TokenText(tokens=np.arange(5_000), bounds=bounds, vocab_size=5_000)
    data = Corpus(text, config(packed=packed, eval_every=1))
    evaluation = data.evaluation_batch(0, 12)  # 2 % are 100 tokens: 12 samples of 8 and their last target
    assert evaluation.inputs.flatten().tolist() == list(range(4_900, 4_996))
    counted = [target for target in evaluation.targets.flatten().tolist() if target >= 0]
    assert counted == [token for token in range(4_901, 4_997) if not packed or token != 4_950]
    assert data.num_evaluation_targets(0, 12) == len(counted)
    training = data.batch(0, 2_000)
    assert training.inputs.max() < 4_900
    assert training.targets.max() < 4_900


def test_the_held_out_part_is_a_sample_at_least_and_comes_again() -> None:
    text = TokenText(tokens=np.arange(100), bounds=np.array([0, 100]), vocab_size=100)
    data = Corpus(text, config(seq_len=16, eval_every=1))
    assert data.evaluation_batch(0, 2).inputs.tolist() == [list(range(83, 99))] * 2
    assert data.batch(0, 500).targets.max() == 82


@pytest.mark.parametrize("packed", [False, True])
def test_without_evaluation_all_text_trains(packed: bool) -> None:
    data = Corpus(COUNTED, config(packed=packed))
    assert max(int(data.batch(index, 1_000).targets.max()) for index in range(0, 20_000, 1_000)) == 4_999
    with pytest.raises(AssertionError, match="only a run with eval_every"):
        data.evaluation_batch(0, 1)
