"""pyarrow.dataset, scanned in order: of a local copy, or from S3. It cannot shuffle."""

import pyarrow.dataset as ds

from consumer import Job, run
from row_groups import arrays, batches
from s3_files import filesystem


def epochs(job: Job):
    if job.source == "s3":
        dataset = ds.dataset([f"{job.bucket}/{key}" for key in job.keys], filesystem=filesystem(job))
    else:
        dataset = ds.dataset(job.files)

    def epoch(_):
        # Batches of its own size, which are cut: it is faster than asking it for small ones.
        for batch in dataset.to_batches():
            if batch.num_rows:
                yield from batches(job, arrays(job.shape, batch))

    return epoch


run(epochs)
