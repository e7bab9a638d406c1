//! The S3 operations, over [`Objects`]: conditionals, ranges, listings and multipart uploads as S3 answers
//! them.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use md5::{Digest, Md5};
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::objects::{Object as Stored, Objects, hex, list};

/// Bodies go out in pieces of this size: large enough to be fast, small enough to share a connection fairly.
const PIECE_BYTES: usize = 256 << 10;

pub(super) struct Api {
    objects: Objects,
    uploads: Mutex<HashMap<String, Upload>>,
    next_upload: AtomicU64,
}

/// The parts of a multipart upload so far.
#[derive(Clone, Default)]
struct Upload(BTreeMap<i32, Bytes>);

impl Api {
    pub(super) fn new(objects: Objects) -> Self {
        Self { objects, uploads: Mutex::default(), next_upload: AtomicU64::new(0) }
    }

    fn find(&self, bucket: &str, key: &str) -> S3Result<Stored> {
        self.objects
            .with_bucket(bucket, |objects| objects.get(key).cloned())
            .ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))?
            .ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."))
    }

    /// Writes an object if the conditions hold for the current one, all under one lock.
    fn store(
        &self,
        bucket: &str,
        key: String,
        object: Stored,
        if_match: Option<&IfMatch>,
        if_none_match: Option<&IfNoneMatch>,
    ) -> S3Result<()> {
        self.objects
            .with_bucket(bucket, |objects| {
                let etag = objects.get(&key).map(|current| current.etag.as_str());
                if if_none_match.is_some_and(|condition| holds(condition, etag)) {
                    return Err(s3_error!(PreconditionFailed));
                }
                if let Some(condition) = if_match {
                    if etag.is_none() {
                        return Err(s3_error!(NoSuchKey));
                    }
                    if !holds(condition, etag) {
                        return Err(s3_error!(PreconditionFailed));
                    }
                }
                objects.insert(key, object);
                Ok(())
            })
            .ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))?
    }
}

#[async_trait]
impl S3 for Api {
    async fn create_bucket(
        &self,
        r: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        self.objects.create_bucket(&r.input.bucket);
        Ok(S3Response::new(CreateBucketOutput::default()))
    }

    async fn head_bucket(&self, r: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        self.objects.with_bucket(&r.input.bucket, |_| ()).ok_or_else(|| s3_error!(NoSuchBucket))?;
        Ok(S3Response::new(HeadBucketOutput::default()))
    }

    async fn put_object(&self, r: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let input = r.input;
        let object = Stored::new(read(input.body).await?);
        let e_tag = Some(ETag::Strong(object.etag.clone()));
        self.store(&input.bucket, input.key, object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        Ok(S3Response::new(PutObjectOutput { e_tag, ..Default::default() }))
    }

    async fn head_object(&self, r: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = r.input;
        let object = self.find(&input.bucket, &input.key)?;
        check(&object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        Ok(S3Response::new(HeadObjectOutput {
            content_length: Some(object.data.len() as i64),
            e_tag: Some(ETag::Strong(object.etag)),
            last_modified: Some(object.modified.into()),
            accept_ranges: Some("bytes".into()),
            ..Default::default()
        }))
    }

    async fn get_object(&self, r: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = r.input;
        let object = self.find(&input.bucket, &input.key)?;
        check(&object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let length = object.data.len() as u64;
        let range = match input.range {
            Some(range) => range.check(length)?,
            None => 0..length,
        };
        let content_range = input.range.map(|_| format!("bytes {}-{}/{length}", range.start, range.end - 1));
        let mut data = object.data.slice(range.start as usize..range.end as usize);
        let content_length = Some(data.len() as i64);
        let pieces = std::iter::from_fn(move || {
            let piece = data.split_to(data.len().min(PIECE_BYTES));
            (!piece.is_empty()).then_some(Ok::<_, std::io::Error>(piece))
        });
        Ok(S3Response::new(GetObjectOutput {
            body: Some(StreamingBlob::wrap(futures::stream::iter(pieces))),
            content_length,
            content_range,
            e_tag: Some(ETag::Strong(object.etag)),
            last_modified: Some(object.modified.into()),
            accept_ranges: Some("bytes".into()),
            ..Default::default()
        }))
    }

    async fn delete_object(
        &self,
        r: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        self.objects.delete(&r.input.bucket, &r.input.key);
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    async fn delete_objects(
        &self,
        r: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let mut deleted = Vec::new();
        for object in r.input.delete.objects {
            self.objects.delete(&r.input.bucket, &object.key);
            deleted.push(DeletedObject { key: Some(object.key), ..Default::default() });
        }
        Ok(S3Response::new(DeleteObjectsOutput { deleted: Some(deleted), ..Default::default() }))
    }

    async fn list_objects_v2(
        &self,
        r: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        let input = r.input;
        let max = input.max_keys.unwrap_or(1000).clamp(0, 1000);
        let after = input.continuation_token.as_deref().or(input.start_after.as_deref());
        let prefix = input.prefix.as_deref().unwrap_or_default();
        let page = self
            .objects
            .with_bucket(&input.bucket, |objects| {
                list(objects, prefix, input.delimiter.as_deref(), after, max as usize)
            })
            .ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))?;
        let common_prefixes: Vec<_> =
            page.prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(prefix) }).collect();
        let contents: Vec<_> = page.objects.into_iter().map(listed).collect();
        Ok(S3Response::new(ListObjectsV2Output {
            key_count: Some((contents.len() + common_prefixes.len()) as i32),
            contents: Some(contents),
            common_prefixes: Some(common_prefixes),
            is_truncated: Some(page.next.is_some()),
            next_continuation_token: page.next,
            max_keys: Some(max),
            name: Some(input.bucket),
            prefix: input.prefix,
            delimiter: input.delimiter,
            ..Default::default()
        }))
    }

    async fn create_multipart_upload(
        &self,
        r: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let id = format!("upload-{}", self.next_upload.fetch_add(1, Ordering::Relaxed));
        self.uploads.lock().insert(id.clone(), Upload::default());
        Ok(S3Response::new(CreateMultipartUploadOutput {
            bucket: Some(r.input.bucket),
            key: Some(r.input.key),
            upload_id: Some(id),
            ..Default::default()
        }))
    }

    async fn upload_part(&self, r: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let data = read(r.input.body).await?;
        let e_tag = Some(ETag::Strong(hex(&Md5::digest(&data))));
        self.uploads
            .lock()
            .get_mut(&r.input.upload_id)
            .ok_or_else(|| s3_error!(NoSuchUpload))?
            .0
            .insert(r.input.part_number, data);
        Ok(S3Response::new(UploadPartOutput { e_tag, ..Default::default() }))
    }

    async fn abort_multipart_upload(
        &self,
        r: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        self.uploads.lock().remove(&r.input.upload_id).ok_or_else(|| s3_error!(NoSuchUpload))?;
        Ok(S3Response::new(AbortMultipartUploadOutput::default()))
    }

    async fn complete_multipart_upload(
        &self,
        r: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let input = r.input;
        let upload =
            self.uploads.lock().get(&input.upload_id).cloned().ok_or_else(|| s3_error!(NoSuchUpload))?;
        let object =
            upload.assemble(input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default())?;
        let e_tag = Some(ETag::Strong(object.etag.clone()));
        let key = input.key.clone();
        self.store(&input.bucket, key, object, input.if_match.as_ref(), input.if_none_match.as_ref())?;
        self.uploads.lock().remove(&input.upload_id);
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag,
            ..Default::default()
        }))
    }
}

impl Upload {
    /// The named parts as one object, with S3's ETag for it: the MD5 of the parts' MD5s, and their number.
    fn assemble(&self, parts: Vec<CompletedPart>) -> S3Result<Stored> {
        let mut data = BytesMut::new();
        let mut digests = Md5::new();
        for part in &parts {
            let bytes = part
                .part_number
                .and_then(|number| self.0.get(&number))
                .ok_or_else(|| s3_error!(InvalidPart))?;
            digests.update(Md5::digest(bytes));
            data.extend_from_slice(bytes);
        }
        let etag = format!("{}-{}", hex(&digests.finalize()), parts.len());
        Ok(Stored { etag, ..Stored::new(data.freeze()) })
    }
}

fn listed((key, object): (String, Stored)) -> Object {
    Object {
        key: Some(key),
        size: Some(object.data.len() as i64),
        e_tag: Some(ETag::Strong(object.etag)),
        last_modified: Some(object.modified.into()),
        ..Default::default()
    }
}

fn check(object: &Stored, if_match: Option<&IfMatch>, if_none_match: Option<&IfNoneMatch>) -> S3Result<()> {
    if if_match.is_some_and(|condition| !holds(condition, Some(&object.etag))) {
        return Err(s3_error!(
            PreconditionFailed,
            "At least one of the pre-conditions you specified did not hold"
        ));
    }
    if if_none_match.is_some_and(|condition| holds(condition, Some(&object.etag))) {
        return Err(s3_error!(NotModified));
    }
    Ok(())
}

fn holds(condition: &ETagCondition, etag: Option<&str>) -> bool {
    match (condition, etag) {
        (_, None) => false,
        (ETagCondition::Any, Some(_)) => true,
        (ETagCondition::ETag(wanted), Some(etag)) => wanted.value() == etag,
    }
}

async fn read(body: Option<StreamingBlob>) -> S3Result<Bytes> {
    let mut data = BytesMut::new();
    if let Some(mut body) = body {
        while let Some(piece) =
            body.try_next().await.map_err(|error| S3Error::with_source(S3ErrorCode::InternalError, error))?
        {
            data.extend_from_slice(&piece);
        }
    }
    Ok(data.freeze())
}
