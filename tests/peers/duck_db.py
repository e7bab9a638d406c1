"""DuckDB over httpfs, which keeps what it has read from S3 in memory; in order, as it cannot permute windows of rows."""

import duckdb

from consumer import Cannot, Job, run
from row_groups import arrays, batches


def epochs(job: Job):
    connection = duckdb.connect()
    try:
        import duckdb_ext

        duckdb_ext.init(connection)
        connection.execute("LOAD httpfs")
    except (ImportError, duckdb.Error) as error:
        raise Cannot(f"httpfs cannot be loaded: {str(error).splitlines()[0]}") from error
    endpoint = job.endpoint.removeprefix("http://")
    connection.execute(
        f"CREATE SECRET (TYPE s3, KEY_ID '{job.access_key}', SECRET '{job.secret_key}', REGION '{job.region}', "
        f"ENDPOINT '{endpoint}', URL_STYLE 'path', USE_SSL false)"
    )
    uris = [f"s3://{job.bucket}/{key}" for key in job.keys]

    def epoch(_):
        found = connection.execute("SELECT * FROM read_parquet($uris)", {"uris": uris})
        for batch in found.fetch_record_batch(max(job.batch_rows, 2048)):
            if batch.num_rows:
                yield from batches(job, arrays(job.shape, batch))

    return epoch


run(epochs)
