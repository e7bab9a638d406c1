use super::*;
use crate::auth::principal::PrincipalLimits;
use crate::auth::session::Credential;
use forebay_proto::manifest::{Object, SegmentSize};

fn caller(prefixes: &[&str], roles: &[CallerRole]) -> Caller {
    let prefixes: Vec<String> = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
    let principal = Arc::new(Principal {
        name: "a".into(),
        roles: roles.iter().copied().collect(),
        prefixes: Allowed::new(&prefixes).unwrap(),
        limits: PrincipalLimits::default(),
    });
    let limiter = Arc::new(Limiter::new("a", PrincipalLimits::default()));
    Caller::of(Arc::new(Session::new(Credential::S3Key("k".into()), principal, limiter)))
}

/// Who reads what lies under a prefix, and may do nothing else.
pub fn reader(prefix: &str) -> Caller {
    caller(&[prefix], &[CallerRole::Reader])
}

/// Who sees all, and reads nothing.
pub fn operator() -> Caller {
    caller(&[], &[CallerRole::Operator])
}

fn manifest(uri: &str, keys: &[&str]) -> Manifest {
    let object = |key: &&str| Object { key: (*key).into(), etag: "e".into(), size: 1, ..Default::default() };
    let size = |object| SegmentSize { object, row_groups: 1, rows: 1, decoded_bytes: 1 };
    let sizes: Vec<_> = (0..keys.len() as u32).map(size).collect();
    Manifest::new(uri, 1, vec![], keys.iter().map(object).collect(), &sizes).unwrap()
}

#[test]
fn uris_of_others_are_denied() {
    let a = caller(&["s3://data/vision/"], &[CallerRole::Reader]);
    assert!(a.may_use("s3://data/vision").is_ok() && a.may_use("s3a://data/vision/x/").is_ok());
    assert!(a.may_use("delta+s3://data/vision/t@3").is_ok() && a.denied().is_none());
    for uri in [
        "s3://data",
        "s3://data/",
        "s3://data/visionX",
        "s3://data/vision*",
        "s3://data/{vision,audio}",
        "s3://data/audio",
        "s3://data/vision/../audio",
        "s3://data/vision/./x",
        "s3://data//vision",
        "delta+s3://data/audio",
        "file:///proc/self/environ",
        "file:///data/vision",
        "gs://data/vision",
        "",
    ] {
        assert!(a.may_use(uri).is_err(), "{uri}");
    }
    // Keys are bytes: an escape is no dot.
    assert!(a.may_use_object("s3://data/%2e%2e/audio").is_err());
    let denial = a.denied().unwrap();
    assert_eq!(denial.uri, "s3://data");
    assert!(denial.why.contains("a may not read it; it reads under s3://data/vision"), "{}", denial.why);
    assert!(
        caller(&[], &[CallerRole::Reader])
            .may_use("s3://data/vision")
            .unwrap_err()
            .message
            .contains("nothing")
    );
}

#[test]
fn all_that_a_selection_names_counts() {
    let a = caller(&["s3://data/vision"], &[CallerRole::Reader]);
    let selection = |uri: &str, key: &str, schema_of: &str| Selection {
        uri: uri.into(),
        objects: vec![Object { key: key.into(), ..Default::default() }],
        schema_of: schema_of.into(),
        ..Selection::default()
    };
    let may = |uri, key, schema_of| a.may_use_selection(&selection(uri, key, schema_of)).is_ok();
    assert!(may("s3://data/vision", "k", "") && may("s3://data/vision", "s3://data/vision/k", "k2"));
    assert!(!may("s3://data/vision", "s3://data/audio/k", ""));
    assert!(!may("s3://data/vision", "k", "s3://data/audio/k"));
    assert!(!may("s3://data/audio", "s3://data/vision/k", ""));
    assert!(!may("s3://data/vision", "../audio/k", ""));
}

#[test]
fn every_part_of_a_manifest_counts() {
    let a = caller(&["s3://data/vision"], &[CallerRole::Reader]);
    let (own, other) =
        (manifest("s3://data/vision/t", &["a", "b"]), manifest("s3://data/visionX/t", &["c", "d"]));
    assert!(a.reads(&own) && a.reads(&own) && !a.reads(&other));
    let mix = Manifest::mix(&[(own.clone(), 1.0), (other.clone(), 1.0)]).unwrap();
    assert!(!a.reads(&mix), "one part is another's");
    assert!(a.reads(&Manifest::mix(&[(own.clone(), 1.0), (own, 2.0)]).unwrap()));
    assert!(
        !a.reads(&manifest("s3://data/vision/t", &["a", "s3://data/audio/x"])),
        "a table's log may say so"
    );
    let o = caller(&[], &[CallerRole::Operator]);
    assert!(o.sees_manifest(&other) && !o.reads(&other), "it sees, and does not read");
    assert!(Caller::everyone().reads(&other));
}

#[test]
fn rules_above_ones_own_are_seen() {
    let a = caller(&["s3://data/vision/deep"], &[CallerRole::Reader]);
    for (uri, sees) in [
        ("s3://data", true),
        ("s3://data/vision", true),
        ("s3://data/vision/deep/er", true),
        ("s3://data/vis", false),
        ("s3://data/audio", false),
    ] {
        assert_eq!(a.sees_rule(uri), sees, "{uri}");
    }
    assert!(!a.sees("s3://data") && !a.sees_figures());
    assert!(caller(&[], &[CallerRole::Metrics]).sees_figures());
}
