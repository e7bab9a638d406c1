"""Parquet in S3 and behind a cache of ranges, opened as files."""

import http.client
import io
import urllib.parse

import pyarrow as pa
import pyarrow.fs

from consumer import Job
from row_groups import Files


def filesystem(job: Job) -> pyarrow.fs.S3FileSystem:
    """S3 by pyarrow's own client."""
    return pyarrow.fs.S3FileSystem(
        access_key=job.access_key,
        secret_key=job.secret_key,
        region=job.region,
        scheme="http",
        endpoint_override=job.endpoint.removeprefix("http://"),
    )


def s3_files(job: Job) -> Files:
    s3 = filesystem(job)
    names = [f"{job.bucket}/{key}" for key in job.keys]
    return Files(job, names, s3.open_input_file, local=False)


def range_files(job: Job, urls: list[str]) -> Files:
    """Files behind URLs, read by ranges."""
    sizes = {url: size(url) for url in urls}
    return Files(job, urls, lambda url: pa.PythonFile(RangeFile(url, sizes[url]), "r"), local=False)


def size(url: str) -> int:
    connection, target = connect(url)
    connection.request("GET", target, headers={"Range": "bytes=0-0"})
    answer = connection.getresponse()
    answer.read()
    if answer.status != 206:
        raise OSError(f"{answer.status} {answer.reason}: {target.partition('?')[0]}")
    return int(answer.headers["Content-Range"].rpartition("/")[2])


def connect(url: str) -> tuple[http.client.HTTPConnection, str]:
    parts = urllib.parse.urlsplit(url)
    return http.client.HTTPConnection(parts.hostname, parts.port, blocksize=1 << 20), f"{parts.path}?{parts.query}"


class RangeFile(io.RawIOBase):
    """A file behind a URL; each read is a request for a range, on one connection."""

    def __init__(self, url: str, length: int):
        super().__init__()
        self.connection, self.target = connect(url)
        self.length, self.at = length, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.at

    def seek(self, offset, whence=io.SEEK_SET):
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.length}[whence]
        return self.at

    def read(self, count=-1):
        stop = self.length if count is None or count < 0 else min(self.length, self.at + count)
        if stop <= self.at:
            return b""
        self.connection.request("GET", self.target, headers={"Range": f"bytes={self.at}-{stop - 1}"})
        answer = self.connection.getresponse()
        data = answer.read()
        if answer.status != 206 or len(data) != stop - self.at:
            raise OSError(f"{answer.status} {answer.reason}, {len(data)} bytes of {stop - self.at}")
        self.at = stop
        return data
