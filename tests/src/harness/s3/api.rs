//! The S3 operations, over [`Objects`]: conditionals, ranges, listings and multipart uploads as S3 answers
//! them.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use forebay_proto::hex;
use futures::TryStreamExt;
use md5::{Digest, Md5};
use s3s::dto::*;
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::object::{About, Object as Stored};
use super::objects::Objects;
use super::read::{Asked, answered, asked, described, holds, list_v1, list_v2, list_versions};

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

    fn find(&self, bucket: &str, key: &str, version_id: Option<&str>) -> S3Result<Stored> {
        let no_bucket = || s3_error!(NoSuchBucket, "The specified bucket does not exist");
        let Some(id) = version_id else {
            let found = self.objects.with_bucket(bucket, |objects| objects.get(key).cloned());
            return found
                .ok_or_else(no_bucket)?
                .ok_or_else(|| s3_error!(NoSuchKey, "The specified key does not exist."));
        };
        let found = self.objects.with_bucket(bucket, |objects| objects.version(key, id));
        let version = found
            .ok_or_else(no_bucket)?
            .ok_or_else(|| s3_error!(NoSuchVersion, "The specified version does not exist."))?;
        let marked = || s3_error!(MethodNotAllowed, "The specified method is not allowed against a mark.");
        let object = version.object.ok_or_else(marked)?;
        Ok(Stored { version_id: object.version_id.or(Some(version.id)), ..object })
    }

    /// Writes an object if the conditions hold for the current one, all under one lock.
    fn store(
        &self,
        bucket: &str,
        key: String,
        object: Stored,
        if_match: Option<&IfMatch>,
        if_none_match: Option<&IfNoneMatch>,
    ) -> S3Result<Option<String>> {
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
                Ok(objects.insert(key, object))
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
        let about = About {
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            content_encoding: input.content_encoding,
            content_language: input.content_language,
            content_type: input.content_type,
            metadata: input.metadata,
            parts: Vec::new(),
        };
        let object = Stored { about: about.into(), ..Stored::new(read(input.body).await?) };
        let e_tag = Some(ETag::Strong(object.etag.clone()));
        let conditions = (input.if_match.as_ref(), input.if_none_match.as_ref());
        let version_id = self.store(&input.bucket, input.key, object, conditions.0, conditions.1)?;
        Ok(S3Response::new(PutObjectOutput { e_tag, version_id, ..Default::default() }))
    }

    async fn head_object(&self, r: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = r.input;
        let object = self.find(&input.bucket, &input.key, input.version_id.as_deref())?;
        let answered = answered(&object, &asked!(input))?;
        Ok(S3Response::new(described!(HeadObjectOutput, object, answered)))
    }

    async fn get_object(&self, r: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let input = r.input;
        let object = self.find(&input.bucket, &input.key, input.version_id.as_deref())?;
        let answered = answered(&object, &asked!(input))?;
        let (data, mut rest) = (object.data.clone(), answered.range.clone());
        let pieces = std::iter::from_fn(move || {
            let piece = rest.start..rest.end.min(rest.start + PIECE_BYTES);
            rest.start = piece.end;
            (!piece.is_empty()).then(|| Ok::<_, std::io::Error>(data.slice(piece)))
        });
        let mut output = described!(GetObjectOutput, object, answered);
        output.body = Some(StreamingBlob::wrap(futures::stream::iter(pieces)));
        output.cache_control = input.response_cache_control.or(output.cache_control);
        output.content_disposition = input.response_content_disposition.or(output.content_disposition);
        output.content_encoding = input.response_content_encoding.or(output.content_encoding);
        output.content_language = input.response_content_language.or(output.content_language);
        output.content_type = input.response_content_type.or(output.content_type);
        output.expires = input.response_expires.or(output.expires);
        Ok(S3Response::new(output))
    }

    async fn get_object_attributes(
        &self,
        r: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let object = self.find(&r.input.bucket, &r.input.key, r.input.version_id.as_deref())?;
        Ok(S3Response::new(GetObjectAttributesOutput {
            e_tag: Some(ETag::Strong(object.etag)),
            object_size: Some(object.data.len() as i64),
            last_modified: Some(object.modified.into()),
            ..Default::default()
        }))
    }

    async fn list_buckets(&self, _: S3Request<ListBucketsInput>) -> S3Result<S3Response<ListBucketsOutput>> {
        let bucket = |name| Bucket { name: Some(name), ..Default::default() };
        let buckets = self.objects.buckets().into_iter().map(bucket).collect();
        Ok(S3Response::new(ListBucketsOutput { buckets: Some(buckets), ..Default::default() }))
    }

    async fn get_bucket_location(
        &self,
        r: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        self.objects.with_bucket(&r.input.bucket, |_| ()).ok_or_else(|| s3_error!(NoSuchBucket))?;
        Ok(S3Response::new(GetBucketLocationOutput::default()))
    }

    async fn put_bucket_versioning(
        &self,
        r: S3Request<PutBucketVersioningInput>,
    ) -> S3Result<S3Response<PutBucketVersioningOutput>> {
        let wanted = r.input.versioning_configuration.status;
        match wanted.as_ref().map(BucketVersioningStatus::as_str) {
            Some(BucketVersioningStatus::ENABLED) => self.objects.keep_versions(&r.input.bucket),
            _ => return Err(s3_error!(NotImplemented, "versions are kept for good, or not at all")),
        }
        Ok(S3Response::new(PutBucketVersioningOutput::default()))
    }

    async fn get_bucket_versioning(
        &self,
        r: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let is_kept = self.objects.with_bucket(&r.input.bucket, |bucket| bucket.keeps_versions());
        let is_kept = is_kept.ok_or_else(|| s3_error!(NoSuchBucket))?;
        let enabled = || BucketVersioningStatus::from_static(BucketVersioningStatus::ENABLED);
        let status = is_kept.then(enabled);
        Ok(S3Response::new(GetBucketVersioningOutput { status, ..Default::default() }))
    }

    async fn delete_bucket(
        &self,
        r: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        match self.objects.delete_bucket(&r.input.bucket) {
            Some(true) => Ok(S3Response::new(DeleteBucketOutput::default())),
            Some(false) => Err(s3_error!(BucketNotEmpty)),
            None => Err(s3_error!(NoSuchBucket)),
        }
    }

    async fn delete_object(
        &self,
        r: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let input = r.input;
        let deleted = self.objects.remove(&input.bucket, &input.key, input.version_id.as_deref());
        let delete_marker = deleted.is_marked.then_some(true);
        Ok(S3Response::new(DeleteObjectOutput {
            delete_marker,
            version_id: deleted.id,
            ..Default::default()
        }))
    }

    async fn delete_objects(
        &self,
        r: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let mut deleted = Vec::new();
        for object in r.input.delete.objects {
            self.objects.remove(&r.input.bucket, &object.key, object.version_id.as_deref());
            deleted.push(DeletedObject { key: Some(object.key), ..Default::default() });
        }
        Ok(S3Response::new(DeleteObjectsOutput { deleted: Some(deleted), ..Default::default() }))
    }

    async fn list_objects(&self, r: S3Request<ListObjectsInput>) -> S3Result<S3Response<ListObjectsOutput>> {
        list_v1(&self.objects, r.input).map(S3Response::new)
    }

    async fn list_objects_v2(
        &self,
        r: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        list_v2(&self.objects, r.input).map(S3Response::new)
    }

    async fn list_object_versions(
        &self,
        r: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        list_versions(&self.objects, &r.input).map(S3Response::new)
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
        let e_tag = Some(ETag::Strong(hex::encode(&Md5::digest(&data))));
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
        let conditions = (input.if_match.as_ref(), input.if_none_match.as_ref());
        let version_id = self.store(&input.bucket, key, object, conditions.0, conditions.1)?;
        self.uploads.lock().remove(&input.upload_id);
        Ok(S3Response::new(CompleteMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag,
            version_id,
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
        let etag = format!("{}-{}", hex::encode(&digests.finalize()), parts.len());
        let bytes = |part: &CompletedPart| Some(self.0.get(&part.part_number?)?.len());
        let about = About { parts: parts.iter().filter_map(bytes).collect(), ..About::default() };
        Ok(Stored { etag, about: about.into(), ..Stored::new(data.freeze()) })
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
