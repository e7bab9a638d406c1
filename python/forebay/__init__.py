"""Training data through a Forebay cache: datasets as tables, and batches in an exact order that resumes exactly.

>>> import forebay
>>> dataset = forebay.dataset("s3://bucket/train")  # doctest: +SKIP
>>> dataset.num_rows, dataset.columns  # doctest: +SKIP
(60000, ['image', 'label'])

Without `endpoint` it is read through a cache node that this machine starts for its user (`forebay.local_node`).
`forebay.Loader` gives Arrow batches, `forebay.torch.Loader` dicts of torch tensors. Nothing but the standard library
is needed; pyarrow and torch are imported when something of them is first asked for.
"""

from forebay._dataset import Dataset, NodeStatus, dataset
from forebay._errors import (
    ChangedError,
    ClosedError,
    CorruptError,
    DeniedError,
    Error,
    FullError,
    InvalidError,
    NotFoundError,
    RetryError,
)
from forebay._forebay import Batch, Column, RecordBatch, RecordBatchReader, Schema, __version__
from forebay._loader import Loader, LoaderStats
from forebay._local_node import LocalNode, LocalNodeStatus, local_node
from forebay._plan import Plan
from forebay._progress import Progress
from forebay._run import RunOptions, State

__all__ = [
    "Batch",
    "ChangedError",
    "ClosedError",
    "Column",
    "CorruptError",
    "Dataset",
    "DeniedError",
    "Error",
    "FullError",
    "InvalidError",
    "Loader",
    "LoaderStats",
    "LocalNode",
    "LocalNodeStatus",
    "NodeStatus",
    "NotFoundError",
    "Plan",
    "Progress",
    "RecordBatch",
    "RecordBatchReader",
    "RetryError",
    "RunOptions",
    "Schema",
    "State",
    "__version__",
    "dataset",
    "local_node",
]
