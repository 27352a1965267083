"""Text through a Hugging Face tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from db.run_config import DataConfig
from engine.data import tokenizer as module
from engine.data.sharing import shared_tokens
from engine.data.source import read_tokens
from engine.data.tokens import TokenText
from engine.errors import ConfigError
from tests.engine.tiny_tokenizer import saved, tiny
from tests.engine.world import run_world

WORDS = "the cat sat on the mat; the dog sat on the cat\n"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(WORDS * 3, encoding="utf-8")
    (folder / "b.txt").write_text("ein Käse\n", encoding="utf-8")
    return folder


def read(texts: Path, path: str, vocab_size: int = 300) -> TokenText:
    return read_tokens(DataConfig(source=str(texts), tokenizer=path), vocab_size)


def documents(text: TokenText) -> list[list[int]]:
    return [text.tokens[text.bounds[i] : text.bounds[i + 1]].tolist() for i in range(text.num_documents)]


def test_documents_decode_to_their_text_and_end(texts: Path, tmp_path: Path) -> None:
    tokenizer = tiny(WORDS)
    path = saved(tokenizer, tmp_path)
    first, second = documents(read(texts, path))
    end = tokenizer.token_to_id("<|endoftext|>")
    assert (first[-1], second[-1]) == (end, end)
    assert tokenizer.decode(first[:-1]) == WORDS * 3
    assert tokenizer.decode(second[:-1]) == "ein Käse\n"
    assert len(first) < len(WORDS * 3)


def test_the_tokenizers_own_habits_are_left_out(texts: Path, tmp_path: Path) -> None:
    tokenizer = tiny(WORDS)
    plain = documents(read(texts, saved(tokenizer, tmp_path)))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=512)
    assert documents(read(texts, saved(tokenizer, tmp_path))) == plain


def test_text_cannot_end_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("before <|endoftext|> after")
    tokenizer = tiny(WORDS)
    (tokens,) = documents(read(tmp_path / "a.txt", saved(tokenizer, tmp_path)))
    assert tokens.count(tokenizer.token_to_id("<|endoftext|>")) == 1
    assert tokens[-1] == tokenizer.token_to_id("<|endoftext|>")


def test_a_tokenizer_without_an_end_token_adds_none(texts: Path, tmp_path: Path) -> None:
    tokenizer = tiny(WORDS, special=("<mask>",))
    first, second = documents(read(texts, saved(tokenizer, tmp_path)))
    assert tokenizer.decode(first) == WORDS * 3
    assert tokenizer.decode(second) == "ein Käse\n"


def test_an_ordinary_token_ends_nothing(texts: Path, tmp_path: Path) -> None:
    path = saved(tiny(WORDS), tmp_path)
    document = json.loads(Path(path).read_text())
    document["added_tokens"] = []  # the name stays in the vocabulary, as any word
    Path(path).write_text(json.dumps(document))
    assert 0 not in read(texts, path).tokens


@pytest.mark.parametrize(("special", "end"), [(("[SEP]", "</s>"), 1), (("<pad>", "<eos>"), 1), (("[SEP]",), 0)])
def test_the_first_known_name_ends_documents(texts: Path, tmp_path: Path, special: tuple[str, ...], end: int) -> None:
    text = read(texts, saved(tiny(WORDS, special=special), tmp_path))
    assert [tokens[-1] for tokens in documents(text)] == [end, end]
    assert text.tokens.tolist().count(end) == 2


def test_pieces_of_a_long_document_lose_nothing(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tiny(WORDS)
    path = saved(tokenizer, tmp_path)
    (texts / "c.txt").write_text("x" * 100)  # no line to end a piece at
    monkeypatch.setattr(module, "_PIECE_CHARS", 60)
    monkeypatch.setattr(module, "_ROUND_CHARS", 100)
    decoded = [tokenizer.decode(tokens[:-1]) for tokens in documents(read(texts, path))]
    assert decoded == [WORDS * 3, "ein Käse\n", "x" * 100]


def test_bytes_that_are_no_text_are_marked(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9 au lait")
    tokenizer = tiny(WORDS)
    (tokens,) = documents(read(tmp_path / "a.txt", saved(tokenizer, tmp_path)))
    assert tokenizer.decode(tokens[:-1]) == "caf\ufffd au lait"


def test_the_model_must_know_every_token(texts: Path, tmp_path: Path) -> None:
    tokenizer = tiny(WORDS)
    path = saved(tokenizer, tmp_path)
    size = tokenizer.get_vocab_size()
    assert read(texts, path, size).num_documents == 2
    with pytest.raises(ConfigError, match=f"has {size} tokens and needs vocab_size >= {size}, given {size - 1}"):
        read(texts, path, size - 1)


def test_the_highest_token_counts_not_how_many_there_are(texts: Path, tmp_path: Path) -> None:
    path = saved(tiny(WORDS), tmp_path)
    document = json.loads(Path(path).read_text())
    document["added_tokens"][0]["id"] = document["model"]["vocab"]["<|endoftext|>"] = 999
    Path(path).write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="has 1000 tokens"):
        read(texts, path)


@pytest.mark.parametrize("content", ["", "{}", "not json", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_named(texts: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(ConfigError, match=r"bad\.json is not a tokenizer\.json"):
        read(texts, str(tmp_path / "bad.json"))


def on_rank(rank: int, source: str, tokenizer: str) -> Any:
    data = DataConfig(source=source, tokenizer=tokenizer)
    try:
        text = shared_tokens(data, 300)
    except ConfigError as error:
        return str(error)
    return text.tokens.dtype.name, text.tokens.tolist(), text.bounds.tolist()


def test_rank_0_tokenises_for_all(texts: Path, tmp_path: Path) -> None:
    path = saved(tiny(WORDS), tmp_path)
    alone = read(texts, path)
    told = run_world(2, on_rank, str(texts), path)
    assert told == [("uint16", alone.tokens.tolist(), alone.bounds.tolist())] * 2
    problems = run_world(2, on_rank, str(texts), str(tmp_path / "missing.json"))
    assert problems[0] == problems[1]
    assert "must be 'bytes' or the path of a tokenizer.json" in problems[0]
