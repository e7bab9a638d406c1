#!/usr/bin/env python3
"""Reads whole datasets by a stock Arrow Flight client and writes each as an Arrow IPC stream.

    flight_read.py grpc://127.0.0.1:PORT s3://bucket/prefix > STREAM
    flight_read.py grpc://127.0.0.1:PORT URI STREAM [URI STREAM]...
"""

import sys

import pyarrow as pa
import pyarrow.flight as flight


def read(client, uri):
    """The schema and the record batches of all endpoints, in their order."""
    info = client.get_flight_info(flight.FlightDescriptor.for_path(uri))
    batches = []
    for endpoint in info.endpoints:
        reader = client.do_get(endpoint.ticket)
        if not reader.schema.equals(info.schema):
            sys.exit(f"{uri}: the stream's schema is not the one announced:\n{reader.schema}\nannounced:\n{info.schema}")
        batches += [chunk.data for chunk in reader]
    rows = sum(batch.num_rows for batch in batches)
    if info.total_records not in (-1, rows):
        sys.exit(f"{uri}: {rows} rows came, {info.total_records} were announced")
    return info.schema, batches


def write(sink, schema, batches):
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def main():
    match sys.argv[1:]:
        case [location, uri]:
            with flight.connect(location) as client:
                write(sys.stdout.buffer, *read(client, uri))
        case [location, *pairs] if pairs and len(pairs) % 2 == 0:
            with flight.connect(location) as client:
                for uri, stream in zip(pairs[::2], pairs[1::2]):
                    with open(stream, "wb") as sink:
                        write(sink, *read(client, uri))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
