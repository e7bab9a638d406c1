//! Generates the messages and services of `proto/forebay/v1`.

fn main() -> std::io::Result<()> {
    let out = std::path::PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // What `forebay` prints as JSON (docs/cli.md).
    let printed = [
        "Counters",
        "DatasetStatus",
        "DirStatus",
        "FillObjectProgress",
        "LoadProgress",
        "MembershipStatus",
        "Memory",
        "Node",
        "Object",
        "ObjectVersion",
        "RawStatus",
        "StatusReply",
    ];
    let attributes = [
        ("DatasetStatus.digest", r#"serialize_with = "crate::json::digest""#),
        ("MembershipStatus.kind", r#"serialize_with = "crate::json::membership_kind""#),
        ("MembershipStatus.connected", r#"rename = "etcd_connected""#),
        ("MembershipStatus.silent_s", r#"rename = "etcd_silent_s""#),
        ("MembershipStatus.error", r#"rename = "etcd_error""#),
        ("Node.name", r#"rename = "node""#),
        ("Object.size", r#"rename = "bytes""#),
        ("Object.version_id", r#"skip_serializing_if = "String::is_empty""#),
    ];
    let files =
        ["cache", "objects", "peer", "snapshots"].map(|name| format!("proto/forebay/v1/{name}.proto"));
    let messages = tonic_prost_build::configure();
    let messages = printed.iter().fold(messages, |messages, name| {
        messages.type_attribute(format!(".forebay.v1.{name}"), "#[derive(serde::Serialize)]")
    });
    // Messages that hold others are not given it.
    let messages = ["Shape", "Table", "TableObject"].iter().fold(messages, |messages, name| {
        messages.type_attribute(format!(".forebay.v1.{name}"), "#[derive(Eq)]")
    });
    let messages = attributes.iter().fold(messages, |messages, (field, attribute)| {
        messages.field_attribute(format!(".forebay.v1.{field}"), format!("#[serde({attribute})]"))
    });
    messages
        .file_descriptor_set_path(out.join("forebay.bin"))
        .bytes(".")
        .compile_protos(&files, &["proto".to_owned()])
}
