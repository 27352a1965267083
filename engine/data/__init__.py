"""Training data: a batch is a pure function of the global sample index.

    text.py, tokenizer.py, megatron.py    where tokens come from
    tokens.py, source.py, sharing.py      documents as one array of tokens, the same on every rank
    windows.py, packing.py                cutting it into samples
    corpus.py, batch.py                   what the engine sees

Which rank asks, and under which plan, changes nothing: no sample is skipped or repeated.
"""

from engine.data.batch import IGNORED, Batch
from engine.data.corpus import Corpus

__all__ = ["IGNORED", "Batch", "Corpus"]
