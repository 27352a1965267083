"""The stream writes what the safetensors library reads, and says what it wrote."""

from __future__ import annotations

import hashlib
import resource
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open

from engine.tensor_file import DTYPE_NAMES, Entry, TensorFile, sha256_of

TENSORS = {
    f"{dtype}": torch.arange(7 * number, dtype=torch.float64).view(7, number).to(dtype)
    for number, dtype in enumerate(DTYPE_NAMES, start=1)
} | {"empty": torch.empty(0), "turned": torch.arange(12.0).view(3, 4).T, "large": torch.rand(3_000_000)}


def write(path: Path) -> TensorFile:
    entries = [Entry(name=name, dtype=x.dtype, shape=tuple(x.shape)) for name, x in TENSORS.items()]
    with TensorFile(path, entries, {"format": "pt"}) as file:
        for tensor in TENSORS.values():
            file.write(tensor)
    return file


def test_the_library_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    written = write(path)
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(TENSORS)
        for name, tensor in TENSORS.items():
            read = file.get_tensor(name)
            assert read.dtype == tensor.dtype
            assert torch.equal(read, tensor)
    content = path.read_bytes()
    assert (written.num_bytes, written.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert sha256_of(path) == written.sha256


def test_a_cut_file_is_refused_by_the_library(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write(path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SafetensorError), safe_open(path, framework="pt"):
        pass


@pytest.mark.parametrize("limit", [4, 4_096, 5_000_000], ids=["header", "buffered", "data"])
def test_a_full_disk_is_an_os_error(tmp_path: Path, limit: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(tmp_path / "x.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
