"""What is written comes back bit for bit under any other plan; damage is seen; there is no pickle."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from torch.distributed import checkpoint as dcp

from engine.checkpoint.manifest import MANIFEST, check_model, read_manifest
from engine.checkpoint.pieces import to_fill
from engine.checkpoint.start import check_files
from engine.checkpoint.storage import FolderReader, read_share
from engine.errors import CheckpointError
from engine.parameters import parameters
from tests.engine.checkpoint.states import a_plan, differences, empty_shard, expected, save, single_plan, small_config

CONFIG = small_config()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(CONFIG, a_plan(CONFIG, 1), tmp_path_factory.mktemp("saved"), step=7, seed=11)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@settings(max_examples=6, deadline=None)
@given(first=st.integers(0, 10_000), second=st.integers(0, 10_000))
def test_random_plan_pairs_round_trip_bitwise(
    tmp_path_factory: pytest.TempPathFactory, dtype: str, first: int, second: int
) -> None:
    config = small_config(train={"dtype": dtype})
    path = save(config, a_plan(config, first), tmp_path_factory.mktemp("pair"), step=3, seed=first)
    manifest = read_manifest(path)
    for device in range(config.num_devices):
        shard = empty_shard(config, a_plan(config, second), device)
        read_share(to_fill(shard), path, manifest)
        assert differences(shard, first) == []


def test_another_number_of_devices_loads_it(saved: Path) -> None:
    config = small_config(cluster={"num_nodes": 1, "devices_per_node": 4})
    plan = a_plan(config, 5)
    for device in range(4):
        shard = empty_shard(config, plan, device)
        read_share(to_fill(shard), saved, read_manifest(saved))
        assert differences(shard, 11) == []


def test_a_folder_holds_json_and_safetensors_only(saved: Path) -> None:
    files = sorted(saved.iterdir())
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    for file in files:
        with pytest.raises(pickle.UnpicklingError):
            pickle.loads(file.read_bytes())
    manifest = json.loads((saved / MANIFEST).read_text())
    assert (manifest["step"], manifest["num_updates"], manifest["plan"]["schema"]) == (7, 3, 1)
    assert manifest["config"]["model"]["hidden_size"] == 32


def test_the_library_s_own_planner_loads_whole_tensors(saved: Path) -> None:
    """The storage is one of torch.distributed.checkpoint: nothing of ours is needed to read it."""
    every = parameters(CONFIG.model)
    tensors = {f"{p.name}.exp_avg": torch.zeros(p.num_elements) for p in every}
    with pytest.warns(UserWarning, match=r"torch\.distributed is disabled"):
        dcp.load(tensors, storage_reader=FolderReader(saved, read_manifest(saved)), no_dist=True)
    for p in every:
        wanted = expected("exp_avg", p.index, 0, p.num_elements, 11).float()
        assert torch.equal(tensors[f"{p.name}.exp_avg"], wanted)


def test_safetensors_reads_the_files(saved: Path) -> None:
    manifest = read_manifest(saved)
    start, stop, index = manifest.tensors["layers.2.w_down.master"].chunks[0]
    with safe_open(saved / manifest.files[index].name, framework="pt") as file:
        values = file.get_tensor(f"layers.2.w_down.master@{start}")
    parameter = next(p for p in parameters(CONFIG.model) if p.name == "layers.2.w_down")
    assert torch.equal(values, expected("master", parameter.index, start, stop, 11).float())


def damaged(saved: Path, tmp_path: Path, kind: str) -> Path:
    """A copy with one thing wrong."""
    copy = tmp_path / saved.name
    copy.mkdir()
    for file in saved.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    victim = copy / read_manifest(saved).files[0].name
    content = bytearray(victim.read_bytes())
    if kind == "bit":
        content[-5] ^= 1
    elif kind == "header":
        content[0:8] = (1 << 60).to_bytes(8, "little")
    elif kind == "short":
        del content[-1]
    victim.write_bytes(content)
    if kind == "missing":
        victim.unlink()
    return copy


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("bit", "damaged: its checksum"),
        ("header", "damaged: its checksum"),
        ("short", r"damaged: expected \d+ bytes, given \d+"),
        ("missing", "cannot read .*: No such file"),
    ],
)
def test_a_damaged_file_is_named(saved: Path, tmp_path: Path, kind: str, words: str) -> None:
    copy = damaged(saved, tmp_path, kind)
    manifest = read_manifest(copy)
    with pytest.raises(CheckpointError, match=rf"{manifest.files[0].name}.* ?{words}|{words}"):
        check_files(manifest, copy)
    parts = [i for i in range(4) if fails(lambda i=i: check_files(manifest, copy, i, 4))]
    assert parts == [0], "each file is looked at by one rank"


@pytest.mark.parametrize("kind", ["header", "short", "missing"])
def test_a_damaged_file_that_is_read_all_the_same_gives_the_one_error(saved: Path, tmp_path: Path, kind: str) -> None:
    copy = damaged(saved, tmp_path, kind)
    pieces = to_fill(empty_shard(CONFIG, single_plan(CONFIG), 0))
    with pytest.raises(CheckpointError, match="damaged"):
        read_share(pieces, copy, read_manifest(copy))


def fails(action: object) -> bool:
    assert callable(action)
    try:
        action()
    except CheckpointError:
        return True
    return False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text[: len(text) // 2], "damaged"),
        (lambda text: "[]", "damaged"),
        (lambda text: text.replace('"schema_version":1', '"schema_version":9'), "damaged: Input should be 1"),
        (lambda text: text.replace('"num_elements":32,', '"num_elements":31,', 1), "elements"),
        (lambda text: text.replace('"name":"rank-', '"name":"../rank-', 1), "damaged: String should match"),
    ],
)
def test_a_damaged_manifest_is_refused(saved: Path, tmp_path: Path, change: object, words: str) -> None:
    assert callable(change)
    copy = damaged(saved, tmp_path, "none")
    text = (copy / MANIFEST).read_text()
    assert change(text) != text
    (copy / MANIFEST).write_text(change(text))
    with pytest.raises(CheckpointError, match=words):
        read_manifest(copy)


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"cannot read .*manifest\.json: No such file"):
        read_manifest(tmp_path)


def test_another_model_is_refused_with_every_difference(saved: Path) -> None:
    config = small_config(model={"num_heads": 4, "ffn_size": 96})
    with pytest.raises(CheckpointError, match="num_heads: expected 4, given 8; ffn_size: expected 96, given 48"):
        check_model(read_manifest(saved), config.model, parameters(config.model), saved)


def test_settings_that_do_not_shape_the_weights_may_differ(saved: Path) -> None:
    config = small_config(model={"seq_len": 32})
    check_model(read_manifest(saved), config.model, parameters(config.model), saved)
