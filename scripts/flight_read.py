#!/usr/bin/env python3
"""Reads a whole dataset by a stock Arrow Flight client and writes it to stdout as one Arrow IPC stream.

    flight_read.py grpc://127.0.0.1:PORT s3://bucket/prefix [--columns a,b] | compare.py FOLDER -
"""

import argparse
import json
import sys

import pyarrow as pa
import pyarrow.flight as flight


def read(location, uri, columns=None):
    """The schema and the record batches of all endpoints, in their order."""
    descriptor = flight.FlightDescriptor.for_path(uri)
    if columns:
        descriptor = flight.FlightDescriptor.for_command(json.dumps({"uri": uri, "columns": columns}))
    with flight.connect(location) as client:
        info = client.get_flight_info(descriptor)
        batches = []
        for endpoint in info.endpoints:
            reader = client.do_get(endpoint.ticket)
            if not reader.schema.equals(info.schema):
                sys.exit(f"the stream's schema is not the one announced:\n{reader.schema}\nannounced:\n{info.schema}")
            batches += [chunk.data for chunk in reader]
        rows = sum(batch.num_rows for batch in batches)
        if info.total_records not in (-1, rows):
            sys.exit(f"{rows} rows came, {info.total_records} were announced")
        return info.schema, batches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location")
    parser.add_argument("uri")
    parser.add_argument("--columns", type=lambda names: names.split(","))
    arguments = parser.parse_args()
    schema, batches = read(arguments.location, arguments.uri, arguments.columns)
    with pa.ipc.new_stream(sys.stdout.buffer, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


if __name__ == "__main__":
    main()
