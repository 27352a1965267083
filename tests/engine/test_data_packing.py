"""Packed samples: every token once an epoch, documents known, whatever is asked in whatever order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.data.packing import PackedDocuments
from engine.data.tokens import TokenText
from engine.errors import ConfigError
from engine.packing import packing_of

lengths_of_documents = st.lists(st.integers(1, 12), min_size=2, max_size=12).filter(lambda some: sum(some) > len(some))


def text_of(lengths: list[int]) -> TokenText:
    """Documents whose tokens are all different: token 100 * d + i is place i of document d."""
    tokens = [100 * number + place for number, length in enumerate(lengths) for place in range(length)]
    return TokenText(tokens=np.array(tokens), bounds=np.cumsum([0, *lengths]), vocab_size=100 * len(lengths))


def seq_len_for(text: TokenText, wish: int) -> int:
    return max(1, min(wish, text.num_tokens - 1))


@given(
    lengths=lengths_of_documents,
    wish=st.integers(1, 20),
    first=st.integers(0, 200),
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 9),
    order=st.randoms(use_true_random=False),
)
def test_samples_do_not_depend_on_how_they_are_asked_for(
    lengths: list[int], wish: int, first: int, counts: list[int], seed: int, order: object
) -> None:
    text = text_of(lengths)
    seq_len = seq_len_for(text, wish)
    whole = PackedDocuments(text, seq_len, seed).batch(first, sum(counts))
    data = PackedDocuments(text, seq_len, seed)
    calls = [(first + sum(counts[:index]), count, index) for index, count in enumerate(counts)]
    order.shuffle(calls)  # type: ignore[attr-defined]
    parts = [part for _, part in sorted((index, data.batch(start, count)) for start, count, index in calls)]
    for name in ("inputs", "targets", "positions", "documents"):
        assert torch.equal(getattr(whole, name), torch.cat([getattr(part, name) for part in parts])), name
    assert data.num_targets(first, sum(counts)) == whole.num_targets
    assert sum(data.num_targets(start, count) for start, count, _ in calls) == whole.num_targets


@given(lengths=lengths_of_documents, wish=st.integers(1, 20), seed=st.integers(0, 9))
def test_an_epoch_uses_every_token_once(lengths: list[int], wish: int, seed: int) -> None:
    text = text_of(lengths)
    seq_len = seq_len_for(text, wish)
    line = PackedDocuments(text, seq_len, seed).batch(0, 4 * text.num_tokens).inputs.flatten().tolist()
    epochs = [line[start : start + text.num_tokens] for start in range(0, 4 * text.num_tokens, text.num_tokens)]
    for epoch in epochs:
        assert sorted(epoch) == text.tokens.tolist()
        heads = [index for index, token in enumerate(epoch) if token % 100 == 0]
        for start, stop in pairwise([*heads, len(epoch)]):  # whole documents, in order inside
            number = epoch[start] // 100
            assert epoch[start:stop] == [100 * number + place for place in range(lengths[number])]


@given(lengths=lengths_of_documents, wish=st.integers(2, 20), first=st.integers(0, 100), seed=st.integers(0, 9))
def test_boundaries_are_where_documents_start(lengths: list[int], wish: int, first: int, seed: int) -> None:
    text = text_of(lengths)
    data = PackedDocuments(text, seq_len_for(text, wish), seed)
    batch, following = data.batch(first, 1), data.batch(first + 1, 1)
    assert batch.documents is not None
    assert batch.positions is not None
    inputs, targets = batch.inputs[0].tolist(), batch.targets[0].tolist()
    documents, positions = batch.documents[0].tolist(), batch.positions[0].tolist()
    nexts = [*inputs[1:], int(following.inputs[0, 0])]
    assert targets == [-100 if token % 100 == 0 else token for token in nexts]
    assert (documents[0], positions[0]) == (0, 0)
    for (token, document, position), (after, next_document, next_position) in pairwise(
        zip(inputs, documents, positions, strict=True)
    ):
        if after % 100 == 0:
            assert (next_document, next_position) == (document + 1, 0)
        else:
            assert after == token + 1
            assert (next_document, next_position) == (document, position + 1)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    text = text_of([2] * 50)
    rows = PackedDocuments(text, 99, 1).batch(0, 1).inputs, PackedDocuments(text, 99, 2).batch(0, 1).inputs
    assert not torch.equal(*rows)
    line = PackedDocuments(text, 10, 1).batch(0, 20).inputs.flatten()
    assert not torch.equal(line[:100], line[100:])
    assert Counter(line.tolist()) == Counter([*text.tokens.tolist(), *text.tokens.tolist()])


def test_without_a_seed_documents_stay_in_order() -> None:
    text = text_of([3, 1, 4])
    assert PackedDocuments(text, 4, None).batch(0, 4).inputs.tolist() == [
        [0, 1, 2, 100],
        [200, 201, 202, 203],
        [0, 1, 2, 100],
        [200, 201, 202, 203],
    ]


def test_documents_of_single_tokens_have_nothing_to_predict() -> None:
    with pytest.raises(ConfigError, match="two tokens or more"):
        PackedDocuments(text_of([1] * 20), 4, 0)


def test_attention_sees_the_past_of_its_document() -> None:
    batch = PackedDocuments(text_of([3, 2]), 4, None).batch(0, 1)
    packing = packing_of(batch, torch.device("cpu"))
    assert packing is not None
    assert packing.positions.tolist() == [[0, 1, 2, 0]]
    assert packing.mask.int().tolist() == [[[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1]]]]
