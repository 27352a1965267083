"""The training loop of one rank: step, exchange, obey.

Every rank runs the same loop. A step ends in one exchange between all ranks; it carries the newest
version of the desired document that rank 0 has read, so all ranks change at the same boundary.

    calibrate -> [ obey the document (pause, stop, rates, plan) -> step -> exchange -> report ] ...
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from db.messages import Desired, Phase
from db.run_config import RunConfig
from engine.agreement import Exchanged, broadcast_text, exchange, vote
from engine.backend import Backend, select
from engine.calibration import LayerProbe, calibrate
from engine.checkpoint.boundary import Checkpoints
from engine.clock import Work
from engine.collectives import world_sum
from engine.data import Corpus
from engine.data.sharing import shared_tokens
from engine.equipment import equip
from engine.errors import ConfigError
from engine.failure import fail
from engine.flops import peak_flops
from engine.foresight import Foresight
from engine.gpu_memory import with_memory
from engine.groups import needed_groups
from engine.identity import identity
from engine.layout import Layout, layout
from engine.learning_rate import learning_rate
from engine.migration import migrate
from engine.model import Decoder
from engine.optimizer import Optimizer
from engine.parameters import parameters
from engine.pipeline import StageRunner
from engine.precision import DTYPES, wide
from engine.preparation import ItemBytes, Preparation, prepare
from engine.reporter import Reporter
from engine.shard import Shard
from engine.socket_links import connect
from engine.step_trace import Recorder, TraceRequest, write
from engine.uplink import Uplink
from planner.plan import Plan
from planner.spec import ClusterSpec, ModelProfile
from planner.validate import check

log = logging.getLogger("malleus.engine")

PAUSE_POLL_S = 1.0
NUM_PROBES = 2


class Trainer:
    """One rank of a run.

    Collective: all ranks construct it and call `train` with the same configuration.

    Args:
        uplink: on rank 0; `None` elsewhere.
        backend: the devices; chosen by the configuration if none is given.
        checkpoints: folder of the run's checkpoints; None: `checkpoint.folder` of the configuration.
        trace: a step to write a trace of.

    Raises:
        ConfigError: the world has another size than the configuration, or the text does not fit.
    """

    def __init__(
        self,
        config: RunConfig,
        uplink: Uplink | None,
        backend: Backend | None = None,
        *,
        checkpoints: Path | None = None,
        trace: TraceRequest | None = None,
    ) -> None:
        self.config, self._uplink, self._trace = config, uplink, trace
        self.device = dist.get_rank()
        if dist.get_world_size() != config.num_devices:
            raise ConfigError(
                f"the run has {config.num_devices} devices and needs as many ranks, given {dist.get_world_size()}"
            )
        self._dtype = DTYPES[config.train.dtype]
        self._parameters = parameters(config.model)
        self._cluster = ClusterSpec(
            nodes=config.nodes, memory_bytes=dict.fromkeys(range(config.num_devices), config.cluster.memory_bytes)
        )
        self._data = Corpus(shared_tokens(config.data, config.model.vocab_size), config)
        self._backend = backend or select(config)
        self._equipment, self._recorder = equip(self._backend, connect()), Recorder()
        self._links, self._groups = self._equipment.host_links, self._equipment.groups
        self.clock = self._equipment.clock
        self._decoder = Decoder(config.model, self._dtype, self._backend.torch_device)
        self._probe = LayerProbe(config, self._decoder, self._equipment.tensor_parallel((self.device,), 0))
        self._checkpoints = Checkpoints(config, checkpoints, uplink)
        self._profile: ModelProfile | None = None
        self._reporter = Reporter(uplink, config, peak_flops(config, self._backend.gpu_name))
        self.step = 0
        self.num_skipped_updates = 0
        self._phase: Phase = "first"
        self._document: Desired | None = None
        self._refused: int | None = None

    def train(self, first: Desired) -> str:
        """Runs to the last step or until told to stop.

        Args:
            first: the desired document to start with, the same on every rank.

        Returns:
            "finished" or "stopped".

        Raises:
            PlanError: the first plan breaks a rule; no group was built.
            CheckpointError: what the run should go on from cannot be loaded.
        """
        plan = self._checked(Plan.from_json(first.plan))
        try:
            self._start(first, plan)
            return self._run()
        finally:
            self._equipment.close()

    def _run(self) -> str:
        try:
            ending = self._steps()
        finally:
            self._foresight.close()
        self._checkpoints.at_end(self.shard, self.step, self._checkpoint_request)
        return ending

    def _steps(self) -> str:
        newest = 0
        while self.step < self.config.train.num_steps:
            self._obey(newest)
            if self._document is not None and self._document.stop:
                return "stopped"
            if self._is_evaluation_due():
                self._evaluate()
            newest = self._step().desired_version
        self._obey(newest)
        if self._is_evaluation_due():
            self._evaluate()
        return "finished"

    def _start(self, first: Desired, plan: Plan) -> None:
        spread = self._laid_out(plan)
        self._groups.prepare(needed_groups(spread))
        self.shard = self._new_shard(spread)
        self.step = self._checkpoints.start(self.shard)
        own = identity(self.device, self.config.cluster.devices_per_node, self._backend.label)
        self._reporter.hello(own, sum(parameter.num_elements for parameter in self._parameters))
        self._reporter.state("calibrating", self.step)
        started = time.perf_counter()
        self._profile = with_memory(self._calibrated(spread), self.config, self._decoder, self._equipment)
        self._groups.retain(needed_groups(spread))
        self._reporter.profile(self._profile, time.perf_counter() - started)
        self._reporter.state("training", self.step)
        self._plan_version = first.plan_version
        store = dist.distributed_c10d._get_default_store()
        self._foresight = Foresight(store, self._offered if self._uplink else None, self._prepare)
        self._take_up(self.shard)
        self._apply_document(first)

    def _calibrated(self, spread: Layout) -> ModelProfile:
        scratch = Optimizer(self._new_shard(spread), self._links, self._groups, self.config.train)
        return calibrate(self.config, self._decoder, self._equipment, lambda: scratch.step(0.0))

    def _obey(self, version: int) -> None:
        """Takes up a newer document; holds while it says so. Collective."""
        if version:
            self._read_document()
        self._save_if_due()
        while self._document is not None and self._document.paused and not self._document.stop:
            self._reporter.state("paused", self.step)
            if self._uplink:
                self._uplink.wait(PAUSE_POLL_S)
            self._read_document()
            self._save_if_due()
            if not self._document.paused:
                self._reporter.state("training", self.step)

    def _save_if_due(self) -> None:
        if self._checkpoints.at_boundary(self.shard, self.step, self._checkpoint_request) and self._phase == "train":
            self._phase = "checkpoint"

    @property
    def _checkpoint_request(self) -> int:
        return self._document.checkpoint if self._document else 0

    def _read_document(self) -> None:
        desired = self._uplink.desired() if self._uplink else None
        text = broadcast_text(desired.model_dump_json() if desired else "")
        if not text:
            return
        document = Desired.model_validate_json(text)
        if self._document is None or document.version != self._document.version:
            self._apply_document(document)

    def _apply_document(self, document: Desired) -> None:
        if document.failure:
            fail(document, self._uplink, step=self.step)
        rates = {injection.device: injection.rate for injection in document.injections}
        self.clock.rate = rates.get(self.device, 1.0)
        if document.plan_version != self._plan_version and document.plan_version != self._refused:
            self._switch(document)
        self._document = document
        if self._uplink:
            self._uplink.applied(document.version)

    def _switch(self, document: Desired) -> None:
        started = time.perf_counter()
        from_version, old = self._plan_version, self.shard
        self._let_go()
        outcome = migrate(
            old,
            lambda: self._foresight.take(old.layout, document.plan),
            self._groups,
            on_progress=self._reporter.migrating(self.step),
        )
        if outcome.reason:
            self._refused = document.plan_version
        else:
            self._plan_version, self._refused = document.plan_version, None
        self._take_up(outcome.shard)
        self._phase = "switch"
        self._reporter.switch(
            outcome,
            document,
            step=self.step,
            from_version=from_version,
            pause_s=time.perf_counter() - started,
        )

    def _prepare(self, old: Layout, document: Mapping[str, Any]) -> Preparation:
        """The way from `old` to a plan. Runs in the background too."""
        new = self._laid_out(self._checked(Plan.from_json(document)))
        weight, gradient = self.shard.weights.dtype.itemsize, self.shard.grads.dtype.itemsize
        size = ItemBytes(weight=weight, gradient=gradient, state=self.shard.states["master"].dtype.itemsize)
        per_node = self.config.cluster.devices_per_node
        return prepare(old, new, lambda device: device // per_node, size)

    def _offered(self) -> Mapping[str, Any] | None:
        """The plan that rank 0 has read and the ranks have not taken up yet."""
        desired = self._uplink.desired() if self._uplink else None
        if desired is None or desired.plan_version in (self._plan_version, self._refused):
            return None
        return desired.plan

    def _take_up(self, shard: Shard) -> None:
        """Makes `shard` the one that trains."""
        self.shard = shard
        self._foresight.trains(shard.layout)
        self._optimizer = Optimizer(shard, self._links, self._groups, self.config.train, self._recorder)
        self._runner: StageRunner | None = None
        place = shard.layout.places.get(self.device)
        if place:
            tp = self._equipment.tensor_parallel(place.stage.devices, place.tp_rank, self._recorder)
            self._runner = StageRunner(
                plan=shard.layout.plan,
                place=place,
                decoder=self._decoder,
                weights=shard.bind(),
                tp=tp,
                data=self._data,
                is_recomputing=self.config.train.recompute,
            )

    def _let_go(self) -> None:
        """Drops what holds on to the shard's tensors, so that a migration can give their memory back."""
        del self._optimizer
        self._runner = None

    def _is_evaluation_due(self) -> bool:
        every = self.config.train.eval_every
        return every > 0 and self.step > 0 and self.step % every == 0

    def _evaluate(self) -> None:
        """Loss on text that is not trained on, and a step after it that detection leaves out. Collective."""
        train = self.config.train
        started = time.perf_counter()
        num_tokens = self._data.num_evaluation_targets(0, train.eval_batches * train.global_batch)
        part: torch.Tensor | float = 0.0
        if self._runner:
            for number in range(train.eval_batches):
                part += self._runner.evaluate(number * train.global_batch, num_tokens)
        loss = float(world_sum(torch.tensor([float(part)], dtype=torch.float64), self._links))
        self._backend.synchronize()
        self.clock.settle()
        if self._phase == "train":
            self._phase = "evaluation"
        seconds = time.perf_counter() - started
        self._reporter.evaluation(step=self.step, loss=loss, num_tokens=num_tokens, seconds=seconds)

    def _step(self) -> Exchanged:
        config, plan = self.config, self.shard.layout.plan
        first_sample = self.step * config.train.global_batch
        if self._trace and self._trace.step == self.step:
            self._recorder.start()
        started = time.perf_counter()
        self.clock.take()
        loss: torch.Tensor | float = 0.0
        units, degree = 0, 1
        if self._runner:
            num_tokens = self._data.num_targets(first_sample, config.train.global_batch)
            loss = self._runner.run_step(first_sample, num_tokens, self._optimizer.sync)
            units, degree = self._runner.num_work_units, self.shard.layout.places[self.device].stage.tp_degree
        elif self.device in plan.standby:
            for _ in range(NUM_PROBES):
                self._probe.run(plan.micro_batch_size)
            units = NUM_PROBES
        rate = learning_rate(config.train, self.step)
        norm = self._optimizer.step(rate)
        self._count_skipped(norm)
        self._backend.synchronize()
        seconds = self.clock.take()
        desired = self._uplink.desired() if self._uplink else None
        changed = desired.version if desired and self._document and desired.version != self._document.version else 0
        told = exchange(
            self._links,
            desired_version=changed,
            loss=float(loss),
            samples=self._runner.consumed if self._runner else [],
            rate=self._rate(seconds, units, plan.micro_batch_size, degree),
            compute_s=sum(seconds.values()) if units else math.nan,
        )
        self._check_samples(told, first_sample)
        self._reporter.step(
            told,
            step=self.step,
            plan_version=self._plan_version,
            phase=self._phase,
            step_s=time.perf_counter() - started,
            grad_norm=norm,
            learning_rate=rate,
        )
        if self._trace and self._trace.step == self.step:
            write(self._trace.path, self._recorder.take(), self.device, self.shard.layout.places.get(self.device))
        self._phase = "train"
        self.step += 1
        return told

    def _rate(self, seconds: dict[Work, float], units: int, size: int, degree: int) -> float:
        if not units or self._profile is None:
            return math.nan
        return (seconds[Work.FORWARD] + seconds[Work.BACKWARD]) / (units * self._profile.compute_s[size][degree])

    def _check_samples(self, told: Exchanged, first: int) -> None:
        count = self.config.train.global_batch
        total = count * first + count * (count - 1) // 2
        assert (told.num_samples, told.sum_samples) == (count, total), (
            f"step {self.step} must consume samples {first}..{first + count - 1}, "
            f"it consumed {told.num_samples} with sum {told.sum_samples} instead of {total}"
        )

    def _count_skipped(self, norm: float) -> None:
        if math.isfinite(norm):
            return
        self.num_skipped_updates += 1
        if self._uplink:
            log.warning(
                "step %d: gradient norm is %s, no weight is updated (skipped so far: %d)",
                self.step,
                norm,
                self.num_skipped_updates,
            )

    def _new_shard(self, spread: Layout) -> Shard:
        return Shard(spread, self.device, self._dtype, wide(self._dtype), self._backend.torch_device)

    def _laid_out(self, plan: Plan) -> Layout:
        return layout(plan, self._parameters, self.config.parallel.max_tp)

    def _checked(self, plan: Plan) -> Plan:
        check(
            plan,
            cluster=self._cluster,
            num_layers=self.config.model.num_layers,
            global_batch=self.config.train.global_batch,
            max_tp=self.config.parallel.max_tp,
        )
        if plan.micro_batch_size not in self.config.train.micro_batch_sizes:
            raise ConfigError(
                f"micro_batch_size must be one of {list(self.config.train.micro_batch_sizes)} (calibrated), "
                f"given {plan.micro_batch_size}"
            )
        return plan


def agree_on_first(uplink: Uplink | None, timeout_s: float) -> Desired:
    """Waits on rank 0 for the first desired document and tells it to all. Collective.

    Raises:
        ConfigError: none arrived in time.
    """
    document: Desired | None = None
    if uplink:
        deadline = time.monotonic() + timeout_s
        while (document := uplink.desired()) is None and time.monotonic() < deadline:
            uplink.wait(0.5)
    problem = f"no plan arrived within {timeout_s:g} s: is the controller running?" if uplink and not document else ""
    problem = vote(problem)
    if problem:
        raise ConfigError(problem)
    return Desired.model_validate_json(broadcast_text(document.model_dump_json() if document else ""))
