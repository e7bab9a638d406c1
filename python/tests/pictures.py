"""Images for tests: PNG files made with the standard library, and an independent model of the draws for a sample."""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa
import xxhash

SIDE = 8
Pixels = list[list[tuple[int, int, int]]]


def pixels(i: int, width: int = SIDE, height: int = SIDE) -> Pixels:
    """Rows of pixels; a function of the image's number."""
    return [[((i * 7 + x * 5) % 256, (i + y * 11) % 256, (x * y + i) % 256) for x in range(width)] for y in range(height)]


def png(rows: Pixels) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 2, 0, 0, 0)
    body = b"".join(b"\0" + bytes(value for pixel in row for value in pixel) for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


def planes(rows: Pixels) -> list[list[list[int]]]:
    """The pixels as a tensor has them: channels, rows, columns."""
    return [[[pixel[channel] for pixel in row] for row in rows] for channel in range(3)]


def mirrored(seed: int, epoch: int, sample: int) -> bool:
    """Whether augment="flip" mirrors this sample: the first number of SplitMix64, started from the key's hash."""
    state = xxhash.xxh3_64_intdigest(struct.pack("<QQQ", seed, epoch, sample))
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return ((z ^ (z >> 31)) >> 11) / 2**53 < 0.5


def photos(count: int) -> pa.Table:
    """Files of one size and of many, as a column and as Hugging Face's structs, and the same as raw pixels."""
    ids = range(count)
    small = [pixels(i) for i in ids]
    flat = [[value for row in rows for pixel in row for value in pixel] for rows in small]
    large = [png(pixels(i, 20 + i % 13, 30 - i % 7)) for i in ids]
    hugging = pa.array(
        [{"bytes": png(rows), "path": None} for rows in small],
        pa.struct({"bytes": pa.binary(), "path": pa.string()}),
    )
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "photo": pa.array([png(rows) for rows in small], pa.binary()),
            "large": pa.array(large, pa.large_binary()),
            "image": hugging,
            "raw": pa.array(flat, pa.list_(pa.uint8(), 3 * SIDE * SIDE)),
            "nested": pa.StructArray.from_arrays([hugging, pa.array(ids, pa.int32())], ["left", "number"]),
        }
    )


def damaged() -> pa.Table:
    """Of these, row 3 is cut off, row 5 is no image, and row 7 is null."""
    files: list[bytes | None] = [png(pixels(i)) for i in range(10)]
    files[3], files[5], files[7] = png(pixels(3))[:60], b"no image", None
    return pa.table({"id": pa.array(range(10), pa.int64()), "photo": pa.array(files, pa.binary())})


def poster(count: int) -> pa.Table:
    """One large image, many times."""
    return pa.table({"photo": pa.array([png(pixels(1, 600, 600))] * count, pa.binary())})
