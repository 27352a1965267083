"""Starts the ranks of this machine with torchrun: `python -m engine.launch TORCHRUN-OPTIONS -m engine ...`.

torchrun itself exits with 1 whatever its ranks exited with. Here the exit status is theirs: 0, 2 if a rank found its
input wrong (starting again would not help), 1 otherwise.
"""

from __future__ import annotations

import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

INPUT_WRONG = 2


def main() -> int:
    """Runs torchrun to its end; see the module's text for the exit status."""
    try:
        torchrun()
    except ChildFailedError as error:
        print(error, file=sys.stderr, flush=True)
        return INPUT_WRONG if any(failure.exitcode == INPUT_WRONG for failure in error.failures.values()) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
