"""Entry of a rank, started by torchrun: `python -m engine --run-id ID --config run.toml [--checkpoints FOLDER]`.

Reads the configuration, joins the others, trains until the end and leaves a final state behind.
Exit status: 0 finished or stopped, 2 the input was wrong, 1 anything else.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from db.errors import BusError, InputError
from db.run_config import RunConfig
from db.settings import Settings
from engine.backend import select
from engine.step_trace import TraceRequest
from engine.trainer import Trainer, agree_on_first
from engine.uplink import Uplink

log = logging.getLogger("malleus.engine")

FIRST_DOCUMENT_TIMEOUT_S = 60.0


def main() -> int:
    """Runs this rank; see the module's text for the exit status."""
    parser = argparse.ArgumentParser(prog="python -m engine", description="One rank of a run (start it with torchrun).")
    parser.add_argument("--run-id", type=int, required=True, help="number of the registered run")
    parser.add_argument("--config", required=True, help="the run's TOML file")
    parser.add_argument("--checkpoints", type=Path, help="folder of the run's checkpoints; goes on from the newest")
    parser.add_argument("--trace-step", type=int, help="write a trace of this step, for chrome://tracing or Perfetto")
    parser.add_argument("--trace-out", type=Path, default=Path("step-trace.json"), help="where the trace goes")
    arguments = parser.parse_args()
    rank = int(os.environ.get("RANK", "0"))
    logging.basicConfig(
        format=f"%(asctime)s rank {rank} %(levelname)s %(message)s", level=logging.INFO, stream=sys.stderr
    )
    torch.set_num_threads(1)
    uplink: Uplink | None = None
    trainer: Trainer | None = None
    try:
        config = RunConfig.from_file(arguments.config)
        if rank == 0:
            from engine.bus_uplink import BusUplink  # only rank 0 loads a broker client

            uplink = BusUplink(Settings.from_env().broker_url, arguments.run_id)
            uplink.set_state("starting", step=0)
        backend = select(config)
        backend.join()
        trace = None
        if arguments.trace_step is not None:
            trace = TraceRequest(step=arguments.trace_step, path=arguments.trace_out)
        trainer = Trainer(config, uplink, backend, checkpoints=arguments.checkpoints, trace=trace)
        ending = trainer.train(agree_on_first(uplink, FIRST_DOCUMENT_TIMEOUT_S))
        if uplink:
            uplink.set_state(ending, step=trainer.step)
        status = 0
    except (InputError, BusError, ValueError) as error:
        log.error("%s", error)
        status = 2
        if uplink:
            uplink.set_state("failed", step=trainer.step if trainer else 0, reason=str(error))
    except Exception as error:  # the outermost loop of this process
        log.exception("rank %d failed", rank)
        status = 1
        if uplink:
            uplink.set_state("failed", step=trainer.step if trainer else 0, reason=f"{type(error).__name__}: {error}")
    finally:
        if uplink:
            uplink.close()
    if dist.is_initialized() and not status:
        dist.destroy_process_group()
    return status


if __name__ == "__main__":
    sys.exit(main())
