//! What the endpoint answers is what its object store answers.

use super::*;
use std::time::Instant;

#[test]
fn the_endpoint_answers_as_its_store() {
    let gateway = Gateway::start();
    let twins = gateway.twins();
    let compared = gateway.runtime.block_on(async {
        twins.fill().await?;
        twins.compare().await
    });
    let compared = compared.expect("compare");
    println!("{} requests, each twice; {} unequal", compared.requests, compared.unequal.len());
    assert!(compared.requests >= 400, "{} requests", compared.requests);
    let shown = compared.unequal.iter().take(200).cloned().collect::<Vec<_>>().join("\n");
    assert!(compared.unequal.is_empty(), "{} of 2 x {}:\n{shown}", compared.unequal.len(), compared.requests);
    gateway.server.stop();
}

#[test]
fn gets_of_a_missing_key_cost_the_store_two_requests_a_second() {
    let gateway = Gateway::start();
    let (ask, began) = (S3Ask::new("GET", gateway.twins().target("none", "")), Instant::now());
    for _ in 0..50 {
        let reply = gateway.ask(&ask);
        assert_eq!((reply.status, reply.code().as_deref()), (404, Some("NoSuchKey")));
    }
    let (asked, seconds) = (gateway.s3.take_log().len(), began.elapsed().as_secs() as usize);
    assert!(asked <= 2 * (seconds + 2), "{asked} requests in {seconds} s");
    gateway.server.stop();
}

#[test]
fn pages_follow_each_other_as_the_store_says() {
    let gateway = Gateway::start();
    gateway.runtime.block_on(gateway.twins().fill()).expect("fill");
    for version in ["", "list-type=2&"] {
        let (mut after, mut pages, mut keys) = (String::new(), 0, 0);
        loop {
            let ask = S3Ask::new(
                "GET",
                format!("/{}?{version}delimiter=/&prefix=tree/0/&max-keys=2{after}", gateway.s3.bucket),
            );
            let reply = gateway.ask(&ask);
            let text = String::from_utf8_lossy(&reply.body).into_owned();
            let element = |name: &str| {
                let (_, rest) = text.split_once(&format!("<{name}>"))?;
                Some(rest.split_once("</")?.0.to_owned())
            };
            (pages, keys) = (pages + 1, keys + text.matches("<Contents>").count());
            let next = element("NextContinuationToken").map(|token| format!("&continuation-token={token}"));
            match next.or(element("NextMarker").map(|marker| format!("&marker={marker}"))) {
                Some(next) => after = next,
                None => break,
            }
        }
        assert_eq!((pages, keys), (5, 9), "{version}");
    }
    gateway.server.stop();
}

#[test]
fn buckets_are_named_by_the_host_too_and_listed() {
    let gateway = Gateway::start();
    gateway.s3.put("public/a", "bytes");
    let host = format!("{}.{DOMAIN}", gateway.s3.bucket);
    let ask = S3Ask::new("GET", "/public/a").header("host", &host);
    assert_eq!(gateway.ask_unsigned(&ask).body, "bytes");
    let elsewhere = S3Ask::new("GET", "/public/a").header("host", &format!("other-bucket.{DOMAIN}"));
    assert_eq!(gateway.ask_unsigned(&elsewhere).status, 403);
    let reply = gateway.ask(&S3Ask::new("GET", "/"));
    let text = String::from_utf8_lossy(&reply.body).into_owned();
    assert!(reply.status == 200 && text.contains(&format!("<Name>{}</Name>", gateway.s3.bucket)), "{text}");
    assert_eq!(text.matches("<Bucket>").count(), 1, "{text}");
    gateway.server.stop();
}

#[test]
fn a_write_between_two_reads_is_seen_and_never_mixed() {
    let gateway = Gateway::start();
    let ask = S3Ask::new("GET", gateway.twins().target("changes", ""));
    let versions: Vec<Vec<u8>> = (0..2).map(|seed| bytes_of(seed, 500_000)).collect();
    for (n, bytes) in versions.iter().cycle().take(6).enumerate() {
        gateway.s3.put("changes", bytes.clone());
        assert!(gateway.ask(&ask).body == *bytes, "read {n} is of another version");
    }
    // Overwritten after its HEAD, before its first byte: the new version, whole.
    gateway.s3.put("mid", versions[0].clone());
    gateway.s3.overwrite_before_get(1, "mid", versions[1].clone());
    let reply = gateway.ask(&S3Ask::new("GET", gateway.twins().target("mid", "")));
    assert!(reply.status == 200 && reply.body == *versions[1], "{} {} bytes", reply.status, reply.body.len());
    gateway.server.stop();
}

#[test]
fn a_warm_read_asks_the_store_once_or_not_at_all() {
    for (age, heads) in [("always", 1), ("immutable", 0)] {
        let gateway = Gateway::with(|options| options.env("FOREBAY_OBJECTS__METADATA_AGE", age));
        let wanted = bytes_of(1, 300_000);
        gateway.s3.put("warm", wanted.clone());
        let ask = S3Ask::new("GET", gateway.twins().target("warm", ""));
        assert!(gateway.ask(&ask).body == wanted);
        gateway.s3.take_log();
        for request in [ask.clone(), ask.clone().header("range", "bytes=70000-80000")] {
            assert!([200, 206].contains(&gateway.ask(&request).status));
            let log = gateway.s3.take_log();
            let methods: Vec<_> = log.iter().map(|seen| seen.method.as_str()).collect();
            assert_eq!(methods, vec!["HEAD"; heads], "{age}");
        }
        gateway.server.stop();
    }
}
