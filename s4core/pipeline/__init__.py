"""From the words of an array to its blobs, and back.

The one layer that knows dtypes, planes, deltas and codecs together. It works on
one-dimensional contiguous tensors, on their own device, and does no I/O.

    threads   the worker threads that encode and decode chunks
    encode    compress: words -> [delta] -> planes -> blobs, decoded again and compared
    decode    decompress: blobs -> planes -> [delta undone] -> words
    choose    which delta, if any, makes an array smallest
    where     which arrays the GPU codec takes
"""

from s4core.pipeline.choose import choose_delta
from s4core.pipeline.decode import Step, Task, decompress
from s4core.pipeline.encode import Encoded, Job, compress
from s4core.pipeline.threads import worker_count
from s4core.pipeline.words import array_digests, byte_view, words_of

__all__ = [
    "Encoded",
    "Job",
    "Step",
    "Task",
    "array_digests",
    "byte_view",
    "choose_delta",
    "compress",
    "decompress",
    "words_of",
    "worker_count",
]
