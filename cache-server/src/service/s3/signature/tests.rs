//! AWS' own examples, and each thing that must not pass.

use super::*;
use http::Request;

/// Who has the key.
fn known() -> Signer {
    Signer::Key(ID.into())
}

const ID: &str = "AKIAIOSFODNN7EXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn signatures() -> Signatures {
    Signatures::new(vec![ClientKey { id: ID.into(), secret: SECRET.into() }], "us-east-1")
}

fn check(uri: &str, headers: &[(&str, &str)], now: &str) -> Result<Signer, &'static str> {
    check_by("GET", uri, headers, now)
}

fn check_by(method: &str, uri: &str, headers: &[(&str, &str)], now: &str) -> Result<Signer, &'static str> {
    let mut request = Request::builder().method(method).uri(uri);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let head = request.body(()).unwrap().into_parts().0;
    let named = Named::of(&head, &["s3.amazonaws.com".into()]).map_err(|refusal| refusal.code)?;
    signatures().check(&head, &named, time_of(now).unwrap()).map_err(|refusal| refusal.code)
}

/// "Example: GET Object" of AWS' page on signatures in the header.
fn example() -> Vec<(&'static str, &'static str)> {
    vec![
        ("host", "examplebucket.s3.amazonaws.com"),
        ("range", "bytes=0-9"),
        ("x-amz-content-sha256", EMPTY),
        ("x-amz-date", "20130524T000000Z"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,\
             Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
    ]
}

fn with(name: &str, value: &'static str) -> Vec<(&'static str, &'static str)> {
    let other = |(given, was)| (given, if given == name { value } else { was });
    example().into_iter().map(other).collect()
}

const NOW: &str = "20130524T001000Z";

#[test]
fn what_aws_signs_is_known() {
    assert_eq!(check("/test.txt", &example(), NOW), Ok(known()));
    let list = [
        ("host", "examplebucket.s3.amazonaws.com"),
        ("x-amz-content-sha256", EMPTY),
        ("x-amz-date", "20130524T000000Z"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;x-amz-content-sha256;x-amz-date,\
             Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ];
    assert_eq!(check("/?max-keys=2&prefix=J", &list, NOW), Ok(known()));
    assert_eq!(check("/?prefix=J&max-keys=2", &list, NOW), Ok(known()), "in any order");
    assert_eq!(check("/test.txt", &[("host", "h")], NOW), Ok(Signer::Anonymous));
}

#[test]
fn what_was_changed_on_the_way_is_not() {
    let denied = |headers: &[(&str, &str)]| check("/test.txt", headers, NOW).unwrap_err();
    assert_eq!(check("/test.txu", &example(), NOW), Err("SignatureDoesNotMatch"));
    assert_eq!(check_by("HEAD", "/test.txt", &example(), NOW), Err("SignatureDoesNotMatch"));
    assert_eq!(check("/test.txt?a=b", &example(), NOW), Err("SignatureDoesNotMatch"));
    assert_eq!(denied(&with("range", "bytes=0-8")), "SignatureDoesNotMatch");
    assert_eq!(denied(&with("host", "other.s3.amazonaws.com")), "SignatureDoesNotMatch");
    assert_eq!(denied(&with("x-amz-date", "20130524T000001Z")), "SignatureDoesNotMatch");
    assert_eq!(denied(&with("x-amz-date", "20130525T000000Z")), "AuthorizationHeaderMalformed");
    assert_eq!(denied(&[&example()[..], &[("x-amz-meta-a", "b")]].concat()), "AccessDenied");
    assert_eq!(denied(&[&example()[..4], &[("authorization", "AWS id:sig")]].concat()), "InvalidRequest");
    assert_eq!(denied(&[&example()[..], &[example()[4]]].concat()), "InvalidArgument");
    let missing = [&example()[..1], &example()[2..]].concat();
    assert_eq!(denied(&missing), "SignatureDoesNotMatch", "range was signed");
    for (now, code) in
        [("20130524T001600Z", "RequestTimeTooSkewed"), ("20130523T234400Z", "RequestTimeTooSkewed")]
    {
        assert_eq!(check("/test.txt", &example(), now), Err(code));
    }
}

/// The signed URL of AWS' page on signatures in the query.
const URL: &str = "/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
     &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request\
     &X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
     &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";

#[test]
fn signed_urls_are_good_for_their_time() {
    let host = [("host", "examplebucket.s3.amazonaws.com")];
    let get = |from: &str, to: &str, now: &str| check(&URL.replace(from, to), &host, now);
    assert_eq!(get("", "", NOW), Ok(known()));
    assert_eq!(get("", "", "20130525T000000Z"), Ok(known()));
    assert_eq!(get("", "", "20130525T000001Z"), Err("AccessDenied"), "it has expired");
    assert_eq!(get("", "", "20130523T230000Z"), Err("AccessDenied"), "it is of the future");
    assert_eq!(get("test.txt", "test.txu", NOW), Err("SignatureDoesNotMatch"));
    assert_eq!(check_by("HEAD", URL, &host, NOW), Err("SignatureDoesNotMatch"), "signed for a GET");
    let elsewhere = [("host", "examplebucket.s3.example.com")];
    assert_eq!(check(URL, &elsewhere, NOW), Err("SignatureDoesNotMatch"), "signed for another host");
    assert_eq!(
        get("&X-Amz-SignedHeaders", "&prefix=x&X-Amz-SignedHeaders", NOW),
        Err("SignatureDoesNotMatch")
    );
    for (from, to) in [
        ("Expires=86400", "Expires=604801"),
        ("Expires=86400", "Expires=-1"),
        ("Expires=86400", "Expires=x"),
        ("X-Amz-Date=20130524T000000Z&", ""),
        ("us-east-1", "us-west-1"),
        ("%2Fs3%2F", "%2Fec2%2F"),
        ("SHA256", "SHA1"),
    ] {
        assert_eq!(get(from, to, NOW), Err("AuthorizationQueryParametersError"), "{to}");
    }
    assert_eq!(get("Expires=86400", "Expires=0", NOW), Err("AccessDenied"), "it was never good");
    assert_eq!(get("AKIAIOSFODNN7EXAMPLE", "AKIA", NOW), Err("InvalidAccessKeyId"));
    let both = [&host[..], &[example()[4]]].concat();
    assert_eq!(check(URL, &both, NOW), Err("InvalidArgument"));
    let version_2 = "/k?AWSAccessKeyId=a&Signature=b&Expires=1";
    assert_eq!(check(version_2, &host, NOW), Err("InvalidRequest"));
}
