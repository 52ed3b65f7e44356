"""From the words of an array to its blobs, and back.

The one layer that knows dtypes, planes, deltas and codecs together. It works on
one-dimensional contiguous tensors, on their own device, and does no I/O.

    threads   the worker threads that encode and decode chunks
    encode    compress: words -> [delta] -> planes -> blobs, decoded again and compared
    decode    decompress: blobs -> planes -> [delta undone] -> words
    choose    whether a delta, a context or a grid makes an array smallest
    derived   arrays that another array of the state says all about
    where     which arrays the GPU codec takes
"""

from s4core.pipeline.choose import Coding, Companion, choose_coding
from s4core.pipeline.decode import Step, Task, decompress
from s4core.pipeline.derived import derive, exceptions_of, fits, rounded
from s4core.pipeline.encode import Encoded, Job, compress
from s4core.pipeline.threads import worker_count
from s4core.pipeline.where import knows_more
from s4core.pipeline.words import array_digests, byte_view, words_of

__all__ = [
    "Coding",
    "Companion",
    "Encoded",
    "Job",
    "Step",
    "Task",
    "array_digests",
    "byte_view",
    "choose_coding",
    "compress",
    "decompress",
    "derive",
    "exceptions_of",
    "fits",
    "knows_more",
    "rounded",
    "words_of",
    "worker_count",
]
