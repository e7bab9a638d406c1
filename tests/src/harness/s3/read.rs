//! GET, HEAD and listings as S3 answers them: conditions, ranges, parts, headers.

use forebay_proto::hex;
use hyper::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, LAST_MODIFIED};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use std::ops::Range as Bytes;

use super::object::Object as Stored;
use super::objects::{Objects, list};

/// What a GET and a HEAD may ask for alike.
pub(super) struct Asked {
    pub(super) if_match: Option<IfMatch>,
    pub(super) if_none_match: Option<IfNoneMatch>,
    pub(super) if_modified_since: Option<Timestamp>,
    pub(super) if_unmodified_since: Option<Timestamp>,
    pub(super) range: Option<Range>,
    pub(super) part_number: Option<i32>,
}

/// The bytes that are answered.
pub(super) struct Answered {
    pub(super) range: Bytes<usize>,
    pub(super) content_range: Option<String>,
    pub(super) parts_count: Option<i32>,
}

/// What of an object is to be answered.
pub(super) fn answered(object: &Stored, asked: &Asked) -> S3Result<Answered> {
    check(object, asked)?;
    let length = object.data.len();
    let range = match (asked.range, asked.part_number) {
        (None, None) => return Ok(Answered { range: 0..length, content_range: None, parts_count: None }),
        (Some(_), _) if length == 0 => return Err(no_range(length)),
        (Some(range), _) => {
            let range = range.check(length as u64).map_err(|_| no_range(length))?;
            range.start as usize..range.end as usize
        }
        (None, Some(number)) => part(object, number)?,
    };
    let content_range = match range.is_empty() {
        true => None,
        false => Some(format!("bytes {}-{}/{length}", range.start, range.end - 1)),
    };
    let parts = object.about.parts.len() as i32;
    let parts_count = asked.part_number.and((parts > 0).then_some(parts));
    Ok(Answered { range, content_range, parts_count })
}

fn no_range(length: usize) -> S3Error {
    let mut error = s3_error!(InvalidRange);
    let range = format!("bytes */{length}").parse().expect("a header");
    error.set_headers(HeaderMap::from_iter([(CONTENT_RANGE, range)]));
    error
}

fn part(object: &Stored, number: i32) -> S3Result<Bytes<usize>> {
    let parts = &object.about.parts;
    let index = number as usize - 1;
    match parts.len() {
        0 if number == 1 => Ok(0..object.data.len()),
        parts if index >= parts => {
            let mut wrong = S3Error::with_message(
                S3ErrorCode::InvalidPart,
                "The requested partnumber is not satisfiable",
            );
            wrong.set_status_code(hyper::StatusCode::RANGE_NOT_SATISFIABLE);
            Err(wrong)
        }
        _ => {
            let start: usize = parts[..index].iter().sum();
            Ok(start..start + parts[index])
        }
    }
}

fn check(object: &Stored, asked: &Asked) -> S3Result<()> {
    let Asked { if_match, if_none_match, if_modified_since, if_unmodified_since, .. } = asked;
    let modified = seconds(&object.modified.into());
    let failed =
        || s3_error!(PreconditionFailed, "At least one of the pre-conditions you specified did not hold");
    match (if_match, if_unmodified_since) {
        (Some(condition), _) if !holds(condition, Some(&object.etag)) => return Err(failed()),
        (None, Some(since)) if modified > seconds(since) => return Err(failed()),
        _ => {}
    }
    let is_known = match (if_none_match, if_modified_since) {
        (Some(condition), _) => holds(condition, Some(&object.etag)),
        (None, Some(since)) => modified <= seconds(since),
        (None, None) => false,
    };
    if !is_known {
        return Ok(());
    }
    let mut known = s3_error!(NotModified);
    let tag = format!("\"{}\"", object.etag).parse().expect("a header");
    let mut headers = HeaderMap::from_iter([(ETAG, tag)]);
    let mut at = Vec::new();
    Timestamp::from(object.modified).format(TimestampFormat::HttpDate, &mut at).expect("write a time");
    headers.insert(LAST_MODIFIED, HeaderValue::from_bytes(&at).expect("a header"));
    known.set_headers(headers);
    Err(known)
}

/// As HTTP tells times, whose text can be compared.
fn seconds(time: &Timestamp) -> String {
    let mut text = Vec::new();
    time.format(TimestampFormat::DateTime, &mut text).expect("write a time");
    String::from_utf8_lossy(&text[..19]).into_owned()
}

pub(super) fn holds(condition: &ETagCondition, etag: Option<&str>) -> bool {
    match (condition, etag) {
        (_, None) => false,
        (ETagCondition::Any, Some(_)) => true,
        (ETagCondition::ETag(wanted), Some(etag)) => wanted.value() == etag,
    }
}

/// What a GET or a HEAD asks for.
macro_rules! asked {
    ($input:expr) => {
        Asked {
            if_match: $input.if_match,
            if_none_match: $input.if_none_match,
            if_modified_since: $input.if_modified_since,
            if_unmodified_since: $input.if_unmodified_since,
            range: $input.range,
            part_number: $input.part_number,
        }
    };
}
pub(super) use asked;

/// The fields that the answers to GET and HEAD have in common.
macro_rules! described {
    ($output:ident, $object:expr, $answered:expr) => {{
        let about = &$object.about;
        $output {
            accept_ranges: Some("bytes".into()),
            cache_control: about.cache_control.clone(),
            content_disposition: about.content_disposition.clone(),
            content_encoding: about.content_encoding.clone(),
            content_language: about.content_language.clone(),
            content_length: Some($answered.range.len() as i64),
            content_range: $answered.content_range.clone(),
            content_type: Some(about.content_type.clone().unwrap_or_else(|| "binary/octet-stream".into())),
            e_tag: Some(ETag::Strong($object.etag.clone())),
            last_modified: Some($object.modified.into()),
            metadata: about.metadata.clone(),
            parts_count: $answered.parts_count,
            version_id: $object.version_id.clone(),
            ..Default::default()
        }
    }};
}
pub(super) use described;

pub(super) fn list_v1(objects: &Objects, input: ListObjectsInput) -> S3Result<ListObjectsOutput> {
    let max = input.max_keys.unwrap_or(1000).clamp(0, 1000);
    let delimiter = input.delimiter.as_deref();
    let prefix = input.prefix.clone().unwrap_or_default();
    let page = objects
        .with_bucket(&input.bucket, |objects| {
            list(objects, &prefix, delimiter, input.marker.as_deref(), max as usize)
        })
        .ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))?;
    let is_url = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == "url");
    let spelled = |text: String| spelled(text, is_url);
    let (contents, common_prefixes) = entries(page.objects, page.prefixes, is_url, true);
    Ok(ListObjectsOutput {
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        is_truncated: Some(page.next.is_some()),
        next_marker: page.next.filter(|_| delimiter.is_some()).map(spelled),
        max_keys: Some(max),
        name: Some(input.bucket),
        prefix: Some(spelled(prefix.clone())),
        marker: Some(spelled(input.marker.clone().unwrap_or_default())),
        delimiter: input.delimiter.clone().map(spelled),
        encoding_type: input.encoding_type,
        ..Default::default()
    })
}

pub(super) fn list_v2(objects: &Objects, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
    let max = input.max_keys.unwrap_or(1000).clamp(0, 1000);
    let after = match &input.continuation_token {
        Some(token) => Some(opened(token)?),
        None => input.start_after.clone(),
    };
    let prefix = input.prefix.clone().unwrap_or_default();
    let page = objects
        .with_bucket(&input.bucket, |objects| {
            list(objects, &prefix, input.delimiter.as_deref(), after.as_deref(), max as usize)
        })
        .ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))?;
    let is_url = input.encoding_type.as_ref().is_some_and(|kind| kind.as_str() == "url");
    let spelled = |text: String| spelled(text, is_url);
    let (contents, common_prefixes) =
        entries(page.objects, page.prefixes, is_url, input.fetch_owner == Some(true));
    Ok(ListObjectsV2Output {
        key_count: Some((contents.len() + common_prefixes.len()) as i32),
        contents: Some(contents),
        common_prefixes: Some(common_prefixes),
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.map(|last| sealed(&last)),
        continuation_token: input.continuation_token,
        start_after: input.start_after.map(spelled),
        max_keys: Some(max),
        name: Some(input.bucket),
        prefix: Some(spelled(prefix.clone())),
        delimiter: input.delimiter.map(spelled),
        encoding_type: input.encoding_type,
        ..Default::default()
    })
}

/// All versions; pages go by keys.
pub(super) fn list_versions(
    objects: &Objects,
    input: &ListObjectVersionsInput,
) -> S3Result<ListObjectVersionsOutput> {
    let prefix = input.prefix.as_deref().unwrap_or_default();
    let (found, is_more) = objects
        .with_bucket(&input.bucket, |bucket| bucket.versions(prefix, input.key_marker.as_deref(), 1000))
        .ok_or_else(|| s3_error!(NoSuchBucket, "The specified bucket does not exist"))?;
    let last = found.last().map(|(key, _)| key.clone());
    let (mut versions, mut marks) = (Vec::new(), Vec::new());
    for (key, all) in found {
        for (i, version) in all.into_iter().enumerate() {
            let (key, version_id, is_latest) = (Some(key.clone()), Some(version.id), Some(i == 0));
            match version.object {
                Some(object) => versions.push(ObjectVersion {
                    key,
                    version_id,
                    is_latest,
                    e_tag: Some(ETag::Strong(object.etag)),
                    size: Some(object.data.len() as i64),
                    last_modified: Some(object.modified.into()),
                    ..Default::default()
                }),
                None => marks.push(DeleteMarkerEntry { key, version_id, is_latest, ..Default::default() }),
            }
        }
    }
    Ok(ListObjectVersionsOutput {
        versions: Some(versions),
        delete_markers: Some(marks),
        is_truncated: Some(is_more),
        next_key_marker: last.filter(|_| is_more),
        ..Default::default()
    })
}

fn entries(
    objects: Vec<(String, Stored)>,
    prefixes: Vec<String>,
    is_url: bool,
    has_owner: bool,
) -> (Vec<Object>, Vec<CommonPrefix>) {
    let owner = || Owner { id: Some("forebay".into()), display_name: Some("forebay".into()) };
    let object = |(key, object): (String, Stored)| Object {
        key: Some(spelled(key, is_url)),
        size: Some(object.data.len() as i64),
        e_tag: Some(ETag::Strong(object.etag)),
        last_modified: Some(object.modified.into()),
        owner: has_owner.then(owner),
        storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
        ..Default::default()
    };
    let prefix = |prefix| CommonPrefix { prefix: Some(spelled(prefix, is_url)) };
    (objects.into_iter().map(object).collect(), prefixes.into_iter().map(prefix).collect())
}

/// As `encoding-type=url` has it.
fn spelled(text: String, is_url: bool) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~/*".contains(&b);
    match is_url {
        true => text.bytes().fold(String::new(), |url, b| match b {
            b if is_plain(b) => url + char::from(b).encode_utf8(&mut [0; 1]),
            b => url + &format!("%{b:02X}"),
        }),
        false => text,
    }
}

/// A token that nobody should look into.
fn sealed(last: &str) -> String {
    format!("t{}", hex::encode(last.as_bytes()))
}

fn opened(token: &str) -> S3Result<String> {
    let wrong = || s3_error!(InvalidArgument, "The continuation token provided is incorrect");
    let bytes = token.strip_prefix('t').and_then(hex::decode);
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(wrong)
}
