"""What a GPU could compute at most, by its name: the measure of model FLOPs utilisation."""

from __future__ import annotations

import torch

_PEAK_TFLOPS: dict[str, tuple[float, float]] = {
    "B200": (2250, 75),
    "H200": (989, 67),
    "H100 PCIe": (756, 51),
    "H100 NVL": (835, 60),
    "H100": (989, 67),
    "H800": (989, 67),
    "GH200": (989, 67),
    "A100": (312, 19.5),
    "A800": (312, 19.5),
    "A40": (149.7, 37.4),
    "A30": (165, 10.3),
    "A10": (125, 31.2),
    "L40S": (362, 91.6),
    "L40": (181, 90.5),
    "L4": (121, 30.3),
    "V100": (125, 15.7),
    "T4": (65, 8.1),
}
"""By name: dense 16-bit tensor-core and plain fp32 teraflops.

Source: NVIDIA's data sheets, SXM form where there are several, halved where they quote sparsity.
"""


def peak_flops(name: str, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a GPU by its name; 0 if the name is not known.

    Args:
        dtype: bfloat16 and float16 run on tensor cores; fp32 does not (TF32 is off, torch's default).
    """
    words = name.replace("-", " ").split()
    for known, (half, single) in sorted(_PEAK_TFLOPS.items(), key=lambda item: -len(item[0])):
        if all(word in words for word in known.split()):
            return (half if dtype.itemsize == 2 else single) * 1e12
    return 0.0
