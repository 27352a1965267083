"""Measuring activations: the fit, and a scripted allocator in place of a GPU's."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from db.run_config import RunConfig
from engine.backend import Backend
from engine.calibration import Flight
from engine.equipment import equip
from engine.errors import ConfigError
from engine.gpu_memory import Activations, agreed, check_reserve, line, measure, with_activations, with_memory
from engine.links import TorchLinks
from engine.model import Decoder
from planner.spec import ModelProfile
from tests.engine.host_backend import HostBackend


class FakeAllocator:
    """Counts what a fake probe allocates."""

    def __init__(self, held: int) -> None:
        self.now = self.most = held

    def grow(self, size: int) -> None:
        self.now += size
        self.most = max(self.most, self.now)

    def allocated(self) -> int:
        return self.now

    def start_peak(self) -> None:
        self.most = self.now

    def peak(self) -> int:
        return self.most

    def slack(self) -> int:
        return self.most // 10

    def outside(self) -> int:
        return 500


class FakeProbe:
    """A layer that keeps `kept` bytes a flight, works in `working`, and whose first backward leaves gradients."""

    def __init__(self, allocator: FakeAllocator, *, kept: int, working: int, ends: int, gradients: int) -> None:
        self._allocator, self._kept, self._working, self._ends = allocator, kept, working, ends
        self._gradients = gradients

    def forward(self, num_sequences: int) -> Flight:
        self._allocator.grow(self._kept * num_sequences)
        return torch.tensor(num_sequences), None

    def backward(self, flight: Flight) -> None:
        self._allocator.grow(self._gradients)
        self._gradients = 0
        self._allocator.grow(self._working)
        self._allocator.grow(-self._working - self._kept * int(flight[0]))

    def run_ends(self, num_sequences: int) -> None:
        self._allocator.grow(self._ends)
        self._allocator.grow(-self._ends)


def test_what_a_flight_keeps_is_told_from_what_one_backward_needs() -> None:
    allocator = FakeAllocator(held=10_000)
    probe = FakeProbe(allocator, kept=700, working=90, ends=1_234, gradients=4_000)
    found = measure(probe, 2, allocator)
    assert (found.per_flight, found.working, found.ends) == pytest.approx((1_400, 90, 1_234))
    assert allocator.now == 14_000  # nothing stays but the gradients


def test_blocks_of_an_allocator_are_averaged_out() -> None:
    block = 512
    peaks = [block * math.ceil((1_000 * number + 300) / block) for number in range(1, 9)]
    per_flight, working = line(peaks)
    assert per_flight == pytest.approx(1_000, rel=0.05)
    assert 0 <= working <= 300 + block


@given(st.floats(0, 1e10), st.floats(0, 1e10), st.integers(2, 8))
def test_a_line_is_found_again(per_flight: float, working: float, count: int) -> None:
    found = line([working + per_flight * number for number in range(1, count + 1)])
    assert found == pytest.approx((per_flight, working), rel=1e-6, abs=1e-5 * (1 + per_flight + working))


@pytest.mark.parametrize("peaks", [[5.0, 4.0, 3.0], [10.0, 30.0, 50.0]])
def test_noise_makes_no_memory_negative(peaks: list[float]) -> None:
    assert all(value >= 0 for value in line(peaks))


def profile() -> ModelProfile:
    return ModelProfile(
        num_layers=4,
        compute_s={1: {1: 0.1}, 2: {1: 0.2}},
        comm_s={1: {1: 0.0}, 2: {1: 0.0}},
        forward_share=0.3,
        embed_s={1: {1: 0.0}, 2: {1: 0.0}},
        head_s={1: {1: 0.0}, 2: {1: 0.0}},
        send_s=0.0,
        sync_s=0.0,
        max_tp=1,
        layer_bytes={1: (1_010.0, 1_020.0, 1_030.0), 2: (1_020.0, 1_040.0, 1_060.0)},
        first_extra_bytes=50.0,
        last_extra_bytes=60.0,
        reserve_bytes=0.0,
        provenance="measured",
    )


def test_measured_bytes_take_the_place_of_estimates() -> None:
    small = Activations(per_flight=7.0, working=3.0, ends=20.0, slack=1.0)
    large = Activations(per_flight=14.0, working=5.0, ends=40.0, slack=2.0)
    found = with_activations(profile(), {1: small, 2: large}, outside=100.0)
    assert found.layer_bytes[1] == pytest.approx((1_007, 1_014, 1_021))
    assert found.layer_bytes[2] == pytest.approx((1_014, 1_028, 1_042))
    assert found.first_extra_bytes == 50.0
    assert found.last_extra_bytes == pytest.approx(100.0)
    assert found.reserve_bytes == pytest.approx(107.0)
    assert found.compute_s == profile().compute_s


@pytest.fixture
def world_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("world_of_one")
def test_ranks_agree_and_one_that_measured_nothing_adds_nothing() -> None:
    mine = Activations(per_flight=7.0, working=3.0, ends=20.0, slack=1.0)
    assert agreed(mine, 100.0) == (mine, 100.0)
    assert agreed(None, 5.0) == (Activations(per_flight=0.0, working=0.0, ends=0.0, slack=0.0), 5.0)


class ScriptedAllocator(FakeAllocator):
    """Peaks as written down, whatever is computed."""

    def __init__(self, *peaks: int) -> None:
        super().__init__(held=0)
        self._peaks = iter(peaks)

    def peak(self) -> int:
        return next(self._peaks)

    def slack(self) -> int:
        return 5


class Measured(HostBackend):
    """The host, with an allocator to ask."""

    def __init__(self, config: RunConfig, allocator: ScriptedAllocator) -> None:
        super().__init__(config)
        self._allocator = allocator

    def allocator(self) -> ScriptedAllocator:
        return self._allocator


@pytest.mark.usefixtures("world_of_one")
@pytest.mark.parametrize(("memory_bytes", "is_enough"), [(1e6, True), (500.0, False)])
def test_a_real_layer_is_flown_and_what_the_allocator_says_becomes_the_profile(
    memory_bytes: float, is_enough: bool
) -> None:
    config = RunConfig.model_validate(
        {
            "train": {"micro_batch_sizes": [1, 2]},
            "cluster": {"num_nodes": 1, "devices_per_node": 1, "memory_bytes": memory_bytes},
            "parallel": {"dp": 1, "tp": 1, "pp": 1, "max_tp": 1},
        }
    )
    backend = Measured(config, ScriptedAllocator(130, 230, 330, 430, 77, 240, 440, 640, 840, 99))
    decoder = Decoder(config.model, torch.float32)

    def found() -> ModelProfile:
        return with_memory(profile(), config, decoder, equip(backend, TorchLinks()))

    if not is_enough:
        with pytest.raises(ConfigError, match="must be more than the 545 "):
            found()
        return
    measured = found()
    assert measured.layer_bytes[1] == pytest.approx((1_100, 1_200, 1_300))
    assert measured.layer_bytes[2] == pytest.approx((1_200, 1_400, 1_600))
    assert measured.last_extra_bytes == pytest.approx(60 + 99)
    assert measured.reserve_bytes == pytest.approx(500 + 40 + 5)


@pytest.mark.usefixtures("world_of_one")
def test_emulated_devices_keep_their_estimates() -> None:
    config = RunConfig()
    equipment = equip(Backend(config), TorchLinks())
    assert with_memory(profile(), config, Decoder(config.model, torch.float32), equipment) == profile()


def test_memory_that_holds_nothing_beside_the_reserve_is_refused() -> None:
    check_reserve(2e9, 1e9)
    with pytest.raises(ConfigError, match=r"must be more than the 1e\+09 .* given 1\.2e\+07"):
        check_reserve(12e6, 1e9)
