"""A fixed mixer of 64-bit numbers: the only source of chance in the data, alike on every machine.

Source: Steele et al. 2014, SplitMix64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mix(value: int) -> int:
    """`value` modulo 2^64, mixed."""
    value = (value + _STEP) & _MASK
    value = ((value ^ (value >> 30)) * _FIRST) & _MASK
    value = ((value ^ (value >> 27)) * _SECOND) & _MASK
    return value ^ (value >> 31)


def shuffled(num_items: int, key: int) -> NDArray[np.int64]:
    """A permutation of `0..num_items - 1` that `key` chooses: items by their mixed numbers."""
    values = np.arange(num_items, dtype=np.uint64)
    values += np.uint64((key + _STEP) & _MASK)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(_FIRST)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(_SECOND)
    return np.argsort(values ^ (values >> np.uint64(31)), kind="stable")
