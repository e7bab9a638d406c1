"""Amazon's connector for PyTorch: whole objects from S3 by its own client, decoded by pyarrow, in order. It neither
decodes nor keeps anything, and shuffles no rows."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset

from consumer import Job, run
from row_groups import arrays, batches


class Objects(IterableDataset):
    def __init__(self, job: Job):
        self.job = job

    def __iter__(self):
        from s3torchconnector import S3ClientConfig, S3IterableDataset

        uris = [f"s3://{self.job.bucket}/{key}" for key in self.job.keys]
        objects = S3IterableDataset.from_objects(
            uris,
            region=self.job.region,
            endpoint=self.job.endpoint,
            enable_sharding=True,
            s3client_config=S3ClientConfig(force_path_style=True),
        )
        for opened in objects:
            file = pq.ParquetFile(pa.BufferReader(opened.read()))
            for group in range(file.num_row_groups):
                for batch in batches(self.job, arrays(self.job.shape, file.read_row_group(group))):
                    yield {name: torch.from_numpy(values) for name, values in batch.items()}


def epochs(job: Job):
    os.environ.update(AWS_ACCESS_KEY_ID=job.access_key, AWS_SECRET_ACCESS_KEY=job.secret_key)
    return lambda _: iter(DataLoader(Objects(job), batch_size=None, num_workers=job.workers))


torch.set_num_threads(1)
run(epochs)
