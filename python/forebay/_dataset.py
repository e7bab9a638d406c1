"""Datasets: Parquet objects under a URI, frozen at one version, read through a cache or directly."""

from __future__ import annotations

import importlib
import json
import logging
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any, SupportsIndex, TypedDict, Unpack

from forebay import _forebay
from forebay._errors import ChangedError, InvalidError
from forebay._html import table
from forebay._local_node import LocalNode
from forebay._numbers import whole
from forebay._pickled import check_pickled
from forebay._place import place, shown
from forebay._progress import Progress, Report, reporting

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from forebay._forebay import Column, RecordBatchReader, Schema
    from forebay._plan import Plan
    from forebay._run import RunOptions

_log = logging.getLogger("forebay")

DatasetName = str | os.PathLike[str] | Mapping[str, float]
"""A URI, a path of this machine, or a mix: ``{uri: share}``."""

# Numbers of rows in one request; the rows come as a stream.
_ROWS_AT_ONCE = 65_536


class NodeStatus(TypedDict, total=False):
    """What a node of the cache says of itself and a dataset; `error` and no figures if it does not answer."""

    node: str
    address: str
    segments_held: int
    cache_bytes_used: int
    cache_bytes_limit: int
    version: str
    error: str


def dataset(
    uri: DatasetName,
    *,
    endpoint: str | Sequence[str] | LocalNode | None = None,
    direct: bool = False,
    columns: Sequence[str] | None = None,
    split: str | tuple[int, int] | tuple[float, float] | None = None,
    segment_bytes: int | None = None,
    schema_of: str | None = None,
    partitions: bool = True,
    where: str | None = None,
    zone: str | None = None,
    ca: str | os.PathLike[str] | None = None,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    token_file: str | os.PathLike[str] | None = None,
    direct_memory_bytes: int | None = None,
    **store: Any,
) -> Dataset:
    """Opens a dataset and freezes its version.

    `uri` names a folder of Parquet objects, one of them or a pattern (`s3://`, `gs://`, `az://`, `file://`), or is
    ``@FILE``, a list of objects, a `pathlib.Path` of this machine, or a mix: ``{uri: share}``. `endpoint` is a node of the
    cache, or several; unset, it is ``$FOREBAY_ENDPOINT``, and where that is unset too, or either is "local", this machine's
    own node, which is started if it does not run (`forebay.local_node`). With ``direct=True`` this process reads the object
    store itself, without any cache. How the object store is read, by this machine's node or directly, `store` says:
    ``s3_endpoint``, ``s3_region``, ``s3_profile``, ``s3_access_key_id`` and ``s3_secret_access_key``, ``s3_session_token``,
    ``s3_path_style``, ``s3_ca``, ``s3_anonymous``, ``s3_max_requests``, ``s3_max_bytes_per_s``, ``patience_s``; the rest
    comes from the usual AWS variables and files.

    `ca`, `cert` and `key` are PEM files for nodes at ``https://``: the authorities to believe, this process's certificate
    and its private key. `token_file` holds the token by which nodes know it. Unset, they are ``$FOREBAY_CA``,
    ``$FOREBAY_CERT``, ``$FOREBAY_KEY`` and ``$FOREBAY_TOKEN_FILE``. A process has one set of them: those given last.

    `columns` are those to read, in this order. `split` takes only some rows, in file order: ``(0.0, 0.9)`` by shares,
    ``(1000, 5000)`` by numbers, or as text as the command `forebay` takes it. Where schemas of objects differ, `schema_of`
    names the object whose schema counts. Directories such as ``year=2024/`` are columns, unless `partitions` is False.
    With `where`, as in ``"price > 3 and country = 'ch'"``, the dataset has only the rows for which that is true.
    What a reader may not expect (objects that were left out) is logged, and in `Dataset.notes`.

    Raises `NotFoundError` if there is nothing, `InvalidError` if arguments contradict each other or the schema,
    `DeniedError` if the cache or the object store refuses this process, `CorruptError` for objects that are no sound
    Parquet, `ChangedError` for a list whose objects were overwritten since, `RetryError` if the cache or the object store
    does not answer, `ClosedError` in a forked process, and what `forebay.local_node` raises where it starts that node. A
    keyword that it does not know is a `TypeError`.
    """
    mix = [f"{_named(part)}={share}" for part, share in uri.items()] if isinstance(uri, Mapping) else []
    options: dict[str, Any] = {
        "columns": None if columns is None else _names(columns),
        "split": _split(split),
        "mix": mix,
        "segment_bytes": None if segment_bytes is None else whole("segment_bytes", segment_bytes),
        "schema_of": schema_of,
        "partitions": partitions,
        "where": where,
        "place": place(
            "dataset",
            endpoint=endpoint,
            direct=direct,
            zone=zone,
            shown=shown(ca, cert, key, token_file),
            store=store,
            direct_memory_bytes=direct_memory_bytes,
        ),
    }
    return _told(Dataset("" if isinstance(uri, Mapping) else _named(uri), options))


def opened(dataset: Dataset | DatasetName, columns: Sequence[str] | None) -> Dataset:
    """What loaders and others take: a dataset, or the name of one."""
    if not isinstance(dataset, Dataset):
        return _open(dataset, columns=columns)
    return dataset if columns is None else dataset.select(columns)


# Where `dataset` is an argument's name.
_open = dataset


def _named(uri: str | os.PathLike[str]) -> str:
    if isinstance(uri, str):
        return uri
    if not isinstance(uri, os.PathLike):
        raise TypeError(
            f"a dataset is named by a URI, a path or a mix {{URI: share}}, not by {uri!r}: for several objects pass a pattern, "
            "or '@FILE', where FILE lists them"
        )
    path = os.fspath(uri)
    return path if "://" in path else f"file://{os.path.abspath(path)}"


def _names(columns: Sequence[str]) -> list[str]:
    if isinstance(columns, str):
        raise InvalidError(f"columns={columns!r} is one text: pass a list of names, as in [{columns!r}]")
    names = list(columns)
    if not names:
        raise InvalidError("columns= names none: leave it out for all of them")
    return names


def _split(split: str | tuple[float, float] | None) -> str | None:
    if split is None or isinstance(split, str):
        return split
    try:
        start, stop = split
        if isinstance(start, SupportsIndex) and isinstance(stop, SupportsIndex):
            return f"{operator.index(start)}:{operator.index(stop)}"
        shares = float(start), float(stop)
    except (TypeError, ValueError):
        raise InvalidError(f"split={split!r} is no pair: pass (start, stop), two rows or two shares, or a text") from None
    # Without exponents: a share is known by its point.
    return ":".join(f"{Decimal(repr(share)):f}" for share in shares)


class Dataset:
    """A dataset at one version: rows of named columns, in file order. Made by `forebay.dataset`.

    Immutable, and may be used by several threads. Any reader of Arrow takes it as it is (`pyarrow.table(ds)`,
    `polars.DataFrame(ds)`, `duckdb.sql("from ds")`), and raises an error of its own kind where reading fails. It can be
    pickled: the copy opens the dataset again, with the same keywords (credentials of the object store among them; of
    `ca`, `cert`, `key` and `token_file` the paths), and refuses another version (`ChangedError`); another version of
    Forebay refuses the pickle (`InvalidError`). In a forked process its properties and methods raise `ClosedError`.
    """

    def __init__(self, uri: str, options: dict[str, Any]) -> None:
        self._asked = (uri, options)
        self._core = _forebay.open(uri, **options)

    @property
    def uri(self) -> str:
        """Where it is; of a mix, the URIs of its parts."""
        return self._core.uri

    @property
    def version(self) -> str:
        """The digest of its objects, their versions and its schema, in hexadecimal digits."""
        return self._core.version

    @property
    def schema(self) -> Schema:
        """Names and types of the columns that are read; `pyarrow.schema(ds.schema)` makes pyarrow's of it."""
        return self._core.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are read."""
        return self.schema.names

    @property
    def num_rows(self) -> int:
        """Rows; known without reading any."""
        return self._core.num_rows

    def count_rows(self) -> int:
        """The same as `num_rows`."""
        return self.num_rows

    def __len__(self) -> int:
        return self.num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of its rows as Arrow, with all columns, whichever are read; estimated when its version was frozen, known
        without reading any."""
        return self._core.nbytes

    @property
    def num_segments(self) -> int:
        """How many segments it has: the units in which a cache holds it."""
        return self._core.num_segments

    @property
    def notes(self) -> list[str]:
        """For people: objects that were left out, and what else they may not expect."""
        return self._core.notes

    @property
    def objects(self) -> list[tuple[str, str, int]]:
        """URI, version (ETag) and bytes of each object."""
        return self._core.objects

    def select(self, columns: Sequence[str]) -> Dataset:
        """The same rows with only these columns, in this order. It is opened again.

        Raises `InvalidError` for columns that do not exist or are named twice, `ChangedError` if the dataset has another
        version now, and what `forebay.dataset` raises.
        """
        uri, options = self._asked
        chosen = Dataset(uri, {**options, "columns": _names(columns)})
        return self._same_version(_told(chosen, but=self.notes))

    def scan(self, limit: int | None = None) -> RecordBatchReader:
        """The first `limit` rows, or all, in file order, as a stream of Arrow record batches of any length, to be read once.

        Raises `InvalidError` for a limit below 0. It, or iterating over the stream, raises `RetryError` if the cache or the
        object store does not answer, `CorruptError` for damaged data, `ChangedError` if an object was overwritten,
        `NotFoundError` if one was deleted, `DeniedError` if the cache or the object store refuses this process.
        """
        return self._core.scan(None if limit is None else whole("limit", limit))

    def to_table(self) -> pyarrow.Table:
        """All rows as a pyarrow table, in file order.

        Raises what `scan` raises, and `ModuleNotFoundError` if pyarrow is missing, as do all methods that return tables.
        """
        return _table(self.scan())

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a DataFrame of pandas, in file order: what `to_table().to_pandas()` makes of them.

        Raises what `scan` raises, and `ModuleNotFoundError` if pandas or pyarrow is missing.
        """
        _imported("pandas", "to_pandas()")
        frame: pandas.DataFrame = self.to_table().to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """All rows as a DataFrame of Polars, in file order: what `polars.from_arrow` makes of `to_table()`.

        Raises what `scan` raises, and `ModuleNotFoundError` if Polars or pyarrow is missing.
        """
        frame: polars.DataFrame = _imported("polars", "to_polars()").from_arrow(self.to_table())
        return frame

    def head(self, rows: int = 5) -> pyarrow.Table:
        """The first `rows` rows as a pyarrow table; all of them if there are fewer.

        Raises `InvalidError` for a number below 0, and what `to_table` raises.
        """
        return _table(self.scan(whole("rows", rows)))

    def take(self, rows: SupportsIndex | Iterable[SupportsIndex] | Column) -> pyarrow.Table:
        """Rows by their numbers, in this order, as a pyarrow table; negative numbers count from the end. The numbers may be
        an array of Arrow, such as `Batch.sample_ids`, of numpy or of torch.

        Raises `IndexError` for a row that does not exist, `TypeError` for anything but whole numbers, and what `to_table`
        raises.
        """
        return _table(self._core.take([self._row(number) for number in _row_numbers(rows)]))

    def _row(self, number: SupportsIndex) -> int:
        row = operator.index(number)
        if not -self.num_rows <= row < self.num_rows:
            raise IndexError(f"{self.uri} has {self.num_rows} rows: there is no row {row}")
        return row % self.num_rows

    def plan(self, epoch: int = 0, **options: Unpack[RunOptions]) -> Plan:
        """Which rows the steps of an epoch hold, without a loader: what `Loader(self, **options).plan(epoch)` says.

        The keywords are those of `forebay.RunOptions`: `batch_size` or `global_batch`, `seed`, `shuffle`, `ending`, `rank`
        and `world` decide. Nothing is read.

        Raises `InvalidError` if the keywords make no sense or do not fit the dataset, `TypeError` for unknown ones, and with
        `columns` what `select` raises.
        """
        # It imports this module.
        from forebay._run import Run

        return Run(self, **options).plan(epoch)

    def load(self, progress: bool | Report | None = None) -> Progress:
        """Has the cache fill itself with the columns that are read, and waits for it. A node that fails keeps no other from
        doing its part.

        `progress=True` shows how far it is: with tqdm, in notebooks as a widget, or as a line on stderr where tqdm is not
        installed. A function is called with a `Progress` now and then.

        Raises `FullError` if the cache has no room for all of it, `RetryError` if a node does not answer or none takes
        segments, `InvalidError` for a dataset of ``direct=True``, and what `scan` and the function raise.
        """
        with reporting(progress, self.uri) as report:
            told = None if report is None else lambda held: report(Progress(*held))
            return Progress(*self._core.load(told))

    def free(self) -> int:
        """Drops all under its `uri` from the cache, other versions and columns too, and returns the bytes of disk that were
        freed. Pinned data goes as well; the pin stays. A node that fails keeps no other from doing its part.

        Raises `RetryError` if a node does not answer, `DeniedError` if one refuses this process, `InvalidError` for a mix and
        for a dataset of ``direct=True``.
        """
        return self._core.free()[1]

    def pin(self, pinned: bool = True) -> int:
        """Keeps what the cache holds under its `uri`, now and later, or with ``pinned=False`` no longer; returns the bytes of
        disk held now. Nothing is read for it.

        Raises `FullError` if a node has 1000 pins already, `NotFoundError` with ``pinned=False`` if no node pins it, and what
        `free` raises.
        """
        return self._core.pin(pinned)[1]

    def status(self) -> list[NodeStatus]:
        """What each node of the cache holds of it.

        Raises `RetryError` if no node answers, `DeniedError` if it refuses this process, `InvalidError` for a dataset of
        ``direct=True``.
        """
        status: list[NodeStatus] = json.loads(self._core.status())
        return status

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.scan().__arrow_c_stream__(requested_schema)

    def __reduce__(self) -> tuple[Callable[..., Dataset], tuple[str, dict[str, Any], str, str]]:
        return _reopen, (*self._asked, self.version, _forebay.__version__)

    def _same_version(self, other: Dataset) -> Dataset:
        return _of_version(other, self.version)

    def __repr__(self) -> str:
        return f"<forebay.Dataset {self.uri} version {self.version}: {self.num_rows} rows of {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        title = f"forebay.Dataset {self.uri} version {self.version}: {self.num_rows} rows, {self.num_segments} segments"
        return table(title, zip(self.schema.names, self.schema.types, strict=True), ("column", "type"))


def _reopen(uri: str, options: dict[str, Any], version: str, package: str | None = None) -> Dataset:
    check_pickled(f"the dataset {uri or '(a mix)'}", package, "open it there by forebay.dataset()")
    return _of_version(_told(Dataset(uri, options)), version)


def _told(dataset: Dataset, but: Sequence[str] = ()) -> Dataset:
    """The dataset, its notes in the log, but for those that are there already."""
    for note in dataset.notes:
        if note not in but:
            _log.warning("%s", note)
    return dataset


def _of_version(dataset: Dataset, version: str) -> Dataset:
    if dataset.version != version:
        raise ChangedError(
            f"{dataset.uri} has version {dataset.version} now, not {version} as when it was first opened: open it again"
        )
    return dataset


def _row_numbers(rows: SupportsIndex | Iterable[SupportsIndex] | Column) -> Iterable[SupportsIndex]:
    if isinstance(rows, SupportsIndex):
        # Arrays have an index if they are one number.
        with suppress(TypeError):
            return [operator.index(rows)]
    if hasattr(rows, "__arrow_c_array__"):
        import pyarrow

        numbers: list[int] = pyarrow.array(rows).to_pylist()
        return numbers
    if not isinstance(rows, Iterable):
        raise TypeError(f"rows={rows!r}: pass the number of a row, or numbers of several")
    return rows


def rows_between(dataset: Dataset, start: int, stop: int) -> Iterator[pyarrow.Table]:
    """These rows in file order, as tables as long as the messages in which they come."""
    import pyarrow

    for first in range(start, stop, _ROWS_AT_ONCE):
        numbers = list(range(first, min(first + _ROWS_AT_ONCE, stop)))
        for batch in dataset._core.take(numbers):
            yield pyarrow.Table.from_batches([pyarrow.record_batch(batch)])


def _imported(module: str, method: str) -> Any:
    """Before rows are read, which may take long."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError(f"{method} needs {module}: pip install {module}, or take the rows by to_table()") from e


def _table(rows: RecordBatchReader) -> pyarrow.Table:
    try:
        import pyarrow
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError("tables need pyarrow: pip install pyarrow, or iterate over Dataset.scan()") from e
    # Batch by batch: pyarrow's own reading of a stream would turn every error into one of its own.
    batches = [pyarrow.record_batch(batch) for batch in rows]
    return pyarrow.Table.from_batches(batches, schema=pyarrow.schema(rows.schema))
