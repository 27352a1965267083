"""What another order of the sums alone does to a training run: the floor under any tolerance.

    python -m bench.reordering

Trains the single-process reference again with other micro-batch sizes, shuffled sequences and products summed
from parts, as plans do, and prints the largest relative difference of loss and gradient norm to the
plain order. A test against the reference cannot ask for less than this.
"""

from __future__ import annotations

import itertools

import torch

from tests.engine.reference import Order, ReferenceStep, reference_steps
from tests.engine.test_training import wide_config

NUM_STEPS = 20
ORDERS = [
    Order(micro_batch_size=size, shuffle=shuffle, num_parts=parts)
    for size, parts in itertools.product((1, 2, 4, 8), (1, 2, 4, 8))
    for shuffle in ((0, 1) if size == 8 else (0, 1, 2))
]


def main() -> None:
    """Prints a line for each type and embedding: differences in the first, 10 and 20 steps."""
    torch.set_num_threads(1)
    for dtype, tied in itertools.product(("float64", "float32", "bfloat16"), (False, True)):
        config = wide_config(dtype, tied=tied, num_steps=NUM_STEPS)
        plain = reference_steps(config, NUM_STEPS)
        others = [reference_steps(config, NUM_STEPS, order) for order in ORDERS]
        cells = []
        for name in ("loss", "grad_norm"):
            for first in (1, 10, NUM_STEPS):
                worst = max(_difference(other, plain, name, first) for other in others)
                cells.append(f"{name} {first} steps {worst:.1e}")
        print(f"{dtype:9}{' tied' if tied else '     '}  " + "  ".join(cells))


def _difference(other: list[ReferenceStep], plain: list[ReferenceStep], name: str, num_steps: int) -> float:
    pairs = zip(other[:num_steps], plain[:num_steps], strict=True)
    return max(abs(getattr(a, name) / getattr(b, name) - 1) for a, b in pairs)


if __name__ == "__main__":
    main()
