use super::*;
use arrow::array::*;
use arrow::compute::concat_batches;
use arrow::datatypes::*;
use arrow_ipc::reader::StreamReader;
use forebay_proto::Kind;
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs a command line; returns the bytes that it printed.
async fn forebay(line: &[&str]) -> Result<Vec<u8>, Failure> {
    let cli = Cli::try_parse_from(std::iter::once(&"forebay").chain(line)).unwrap_or_else(|e| panic!("{e}"));
    let mut out = Vec::new();
    run(cli.command, &mut out).await.map(|()| out)
}

async fn error(line: &[&str]) -> forebay_proto::Error {
    match forebay(line).await {
        Err(Failure::Error(e) | Failure::Usage(e)) => {
            assert!(!e.message.contains('\n') && !e.message.is_empty(), "{e}");
            e
        }
        Err(Failure::ReaderGone) => panic!("the reader has not gone"),
        Ok(out) => panic!("no error but {}", String::from_utf8_lossy(&out)),
    }
}

fn lines(out: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(out).unwrap();
    text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
}

/// Rows `first .. first + rows` of a table with a little of everything.
fn batch(first: i64, rows: i64) -> RecordBatch {
    let ids = first..first + rows;
    let nullable = |i: i64| (i % 3 > 0).then_some(i);
    let list =
        ListArray::from_iter_primitive::<Int32Type, _, _>(ids.clone().map(|i| {
            nullable(i).map(|i| (0..i % 4).map(|j| (j > 0).then_some(j as i32)).collect::<Vec<_>>())
        }));
    let image = FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(
        ids.clone().map(|i| Some([Some(i as u8), Some(0), Some(255)])),
        3,
    );
    let at =
        TimestampMicrosecondArray::from_iter_values(ids.clone().map(|i| i * 1_000_000)).with_timezone("UTC");
    RecordBatch::try_from_iter_with_nullable([
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone())) as ArrayRef, false),
        (
            "name",
            Arc::new(StringArray::from_iter(ids.clone().map(|i| nullable(i).map(|i| i.to_string())))),
            true,
        ),
        ("blob", Arc::new(BinaryArray::from_iter_values(ids.clone().map(|i| i.to_be_bytes()))), false),
        ("score", Arc::new(Float32Array::from_iter(ids.map(|i| nullable(i).map(|i| i as f32 / 2.0)))), true),
        ("list", Arc::new(list), true),
        ("image", Arc::new(image), false),
        ("at", Arc::new(at), false),
    ])
    .unwrap()
}

fn write(path: &Path, batch: &RecordBatch) {
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// A dataset of two objects, 100 rows; its folder and URI.
fn dataset() -> (tempfile::TempDir, String, RecordBatch) {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (batch(0, 60), batch(60, 40));
    write(&folder.path().join("a.parquet"), &a);
    write(&folder.path().join("b.parquet"), &b);
    let uri = format!("file://{}", folder.path().display());
    (folder, uri, concat_batches(&a.schema(), [&a, &b]).unwrap())
}

#[tokio::test]
async fn cat_arrow_is_what_was_written() {
    let (_folder, uri, all) = dataset();
    let out = forebay(&["cat", &uri, "--direct", "--format", "arrow"]).await.unwrap();
    let reader = StreamReader::try_new(out.as_slice(), None).unwrap();
    let schema = reader.schema();
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    let read = concat_batches(&schema, &batches).unwrap();
    assert_eq!(read.num_rows(), 100);
    for (column, field) in all.schema().fields().iter().enumerate() {
        assert_eq!(read.column(column), all.column(column), "{}", field.name());
    }
}

#[tokio::test]
async fn cat_keeps_the_order_of_columns_and_the_limit() {
    let (_folder, uri, _) = dataset();
    let out = forebay(&["cat", &uri, "--direct", "--columns", "name,id", "--limit", "2"]).await.unwrap();
    assert_eq!(std::str::from_utf8(&out).unwrap(), "{\"name\":null,\"id\":0}\n{\"name\":\"1\",\"id\":1}\n");
    let out = forebay(&["cat", &uri, "--direct", "--columns", "at,list,image,blob,score"]).await.unwrap();
    let rows = lines(&out);
    assert_eq!(rows.len(), 100);
    let row = json!({
        "at": "1970-01-01T00:01:01Z", "list": [null], "image": [61, 0, 255], "blob": "000000000000003d", "score": 30.5
    });
    assert_eq!(rows[61], row);
    assert_eq!(rows[60]["list"], Value::Null);
    for (limit, rows) in [("0", 0), ("61", 61), ("1000", 100)] {
        let out = forebay(&["cat", &uri, "--direct", "--columns", "id", "--limit", limit]).await.unwrap();
        assert_eq!(lines(&out).len(), rows, "{limit}");
    }
    let out =
        forebay(&["cat", &uri, "--direct", "--columns", "score,id", "--limit", "0", "--format", "arrow"])
            .await;
    let out = out.unwrap();
    let schema = StreamReader::try_new(out.as_slice(), None).unwrap().schema();
    assert_eq!((schema.field(0).name().as_str(), schema.field(1).name().as_str()), ("score", "id"));
}

#[tokio::test]
async fn inspect_counts_what_is_there() {
    let (_folder, uri, _) = dataset();
    let out = forebay(&["inspect", &uri, "--direct", "--json", "--columns", "id"]).await.unwrap();
    let all: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!((all["rows"].as_u64(), all["row_groups"].as_u64()), (Some(100), Some(2)));
    assert_eq!(all["objects"][1]["key"], "b.parquet");
    assert_eq!(all["objects"][1]["rows"], 40);
    assert_eq!(all["segments"][1]["first_row"], 60);
    assert_eq!(
        (&all["columns"][0]["projected"], &all["columns"][1]["projected"]),
        (&json!(true), &json!(false))
    );
    let object_bytes = all["object_bytes"].as_u64().unwrap();
    assert!((1..object_bytes).contains(&all["projected_bytes"].as_u64().unwrap()));
    let text = String::from_utf8(forebay(&["inspect", &uri, "--direct"]).await.unwrap()).unwrap();
    assert!(text.contains("100 rows in 2 objects, 2 row groups and 2 segments"), "{text}");
    assert!(text.contains("name    Utf8"), "{text}");
}

#[tokio::test]
async fn inspect_shows_the_largest_and_as_many_as_are_wanted() {
    let (folder, uri, _) = dataset();
    write(&folder.path().join("c.parquet"), &batch(100, 80));
    let shown = async |more: &[&str]| {
        let line = [&["inspect", uri.as_str(), "--direct", "--segments"], more].concat();
        let text = String::from_utf8(forebay(&line).await.unwrap()).unwrap();
        let (objects, segments) = text.split_once("\nsegment").unwrap();
        // The order in which they are shown.
        let names = |text: &str| {
            let words = text.split_whitespace().filter_map(|word| word.strip_suffix(".parquet"));
            words.collect::<String>()
        };
        (names(objects), names(segments), text)
    };
    for (more, objects, segments) in [
        (&[][..], "abc", "abc"),
        (&["--sort", "rows"], "cab", "cab"),
        (&["--sort", "size", "--limit", "2"], "ca", "ca"),
        (&["--limit", "1"], "a", "a"),
    ] {
        let (of_objects, of_segments, text) = shown(more).await;
        assert_eq!((&*of_objects, &*of_segments), (objects, segments), "{more:?}: {text}");
    }
    let (.., text) = shown(&["--limit", "1"]).await;
    assert!(text.contains("and 2 further objects (--limit N shows N, --json all)"), "{text}");
    assert!(text.contains("and 2 further segments (--json lists all)"), "{text}");
}

#[tokio::test]
async fn bad_input_is_told_in_one_line() {
    let (folder, uri, _) = dataset();
    let e = error(&["cat", &uri, "--direct", "--columns", "id,nope"]).await;
    assert_eq!(e.kind, Kind::Invalid);
    assert!(e.message.contains("nope") && e.message.contains("score") && e.message.contains(&uri), "{e}");
    let e = error(&["cat", &uri, "--direct", "--columns", "id,id"]).await;
    assert!(e.message.contains("twice"), "{e}");
    let e = error(&["inspect", &format!("{uri}/none"), "--direct"]).await;
    assert_eq!(e.kind, Kind::NotFound);
    assert!(e.message.contains("/none"), "{e}");
    std::fs::write(folder.path().join("c.parquet"), "this is not Parquet at all").unwrap();
    let e = error(&["cat", &uri, "--direct"]).await;
    assert!(e.message.contains("c.parquet"), "{e}");
    assert_eq!(error(&["cat", "/plain/path", "--direct"]).await.kind, Kind::Invalid);
}

#[tokio::test]
async fn an_unreachable_cache_is_named_within_seconds() {
    let endpoint = "127.0.0.1:1";
    for command in [
        &["status"][..],
        &["inspect", "s3://b/d"],
        &["load", "s3://b/d"],
        &["free", "s3://b/d"],
        &["cat", "s3://b/d"],
    ] {
        let started = Instant::now();
        let e = error(&[command, &["--endpoint", endpoint]].concat()).await;
        assert!(started.elapsed() < Duration::from_secs(30), "{command:?}");
        assert!(e.message.contains(&format!("cannot reach the cache at http://{endpoint}")), "{e}");
    }
    let e = error(&["cat", "s3://b/d", "--direct", "--endpoint", endpoint]).await;
    assert!(e.message.contains("contradict"), "{e}");
}

#[tokio::test]
async fn a_reader_that_goes_ends_it_quietly() {
    struct Head(usize);
    impl Write for Head {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (_folder, uri, _) = dataset();
    for line in [
        &["cat", &uri, "--direct"][..],
        &["cat", &uri, "--direct", "--format", "arrow"],
        &["inspect", &uri, "--direct", "--json"],
        &["inspect", &uri, "--direct"],
    ] {
        for room in [0, 200] {
            let cli = Cli::try_parse_from(std::iter::once(&"forebay").chain(line)).unwrap();
            let done = run(cli.command, &mut Head(room)).await;
            assert!(matches!(done, Err(Failure::ReaderGone)), "{line:?} {room}: {done:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_are_reported_and_ranks_merge() {
    let (_folder, uri, _) = dataset();
    let epoch = async |more: &[&str]| {
        let line = [&["epoch", &uri, "--direct", "--json", "--batch", "12", "--seed", "7"], more].concat();
        serde_json::from_slice::<Value>(&forebay(&line).await.unwrap()).unwrap()
    };
    let one = epoch(&["--epochs", "2"]).await;
    let rows = one["epochs"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["samples"], &rows[0]["steps"]), (&json!(100), &json!(9)));
    assert_eq!((&rows[0]["source"], &rows[1]["source"]), (&json!("files"), &json!("memory")));
    assert_eq!((&rows[1]["s3_requests"], &rows[1]["parquet_bytes_decoded"]), (&json!(0), &json!(0)));
    assert!(rows[0]["s3_footer_requests"].as_u64() > Some(0));
    assert_ne!(rows[0]["order_digest"], rows[1]["order_digest"]);
    assert_eq!(one["settings"]["shuffle"], "window(4)");
    let three = epoch(&["--world", "3", "--window", "4"]).await;
    assert_eq!(three["epochs"][0]["order_digest"], rows[0]["order_digest"], "ranks change nothing");
    assert_eq!(three["epochs"][0]["samples"], 100);
    let last = epoch(&["--world", "3", "--rank", "2", "--ending", "drop", "--columns", "id"]).await;
    assert_eq!(last["epochs"][0]["samples"], 32);
    let text = forebay(&["epoch", &uri, "--direct", "--epochs", "2"]).await.unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(text.lines().next().unwrap().starts_with("epoch  source"), "{text}");
}

#[tokio::test]
async fn epochs_that_cannot_be_are_refused() {
    for (line, says) in [
        (&["--world", "0"][..], "world size 0"),
        (&["--batch", "0"], "global batch 0"),
        (&["--world", "3", "--batch", "16"], "use 15 or 18"),
        (&["--rank", "1"], "rank 1 of 1"),
    ] {
        let line = [&["epoch", "file:///nowhere", "--direct"], line].concat();
        let e = error(&line).await;
        assert!(e.message.contains(says), "{e}");
        assert!(matches!(forebay(&line).await, Err(Failure::Usage(_))), "{line:?}");
    }
    for line in [
        &["--shuffle", "wild"][..],
        &["--shuffle", "none", "--window", "3"],
        &["--epochs", "0"],
        &["--ending", "x"],
    ] {
        let line = [&["forebay", "epoch", "file:///nowhere", "--direct"], line].concat();
        assert_eq!(Cli::try_parse_from(line).unwrap_err().exit_code(), 2);
    }
}

#[tokio::test]
async fn a_command_line_that_makes_no_sense_is_told_from_a_failure() {
    let (_folder, uri, _) = dataset();
    for line in [
        &["status", "--endpoint", "127.0.0.1"][..],
        &["pin", "snapshot:july", "--endpoint", "127.0.0.1:1"],
        &["unpin", "nonsense", "--endpoint", "127.0.0.1:1"],
        &["free", "snapshot:july", "--endpoint", "127.0.0.1:1"],
        &["replicas", "snapshot:july", "2", "--endpoint", "127.0.0.1:1"],
        &["plan", &uri, "--direct", "--rank", "4", "--world", "2"],
        &["cat", &uri, "--direct", "--endpoint", "127.0.0.1:1"],
    ] {
        let done = forebay(line).await;
        assert!(matches!(done, Err(Failure::Usage(_))), "{line:?}: {done:?}");
    }
    let done = forebay(&["status", "--endpoint", "127.0.0.1:1"]).await;
    assert!(matches!(done, Err(Failure::Error(_))), "nobody is there: {done:?}");
    let many = Cli::try_parse_from(["forebay", "replicas", "s3://b/d", "99"]).unwrap_err().to_string();
    assert!(many.contains("99 is not in 0..=16"), "{many}");
}

#[tokio::test]
async fn a_folder_is_told_from_an_object_that_is_not_there() {
    let (_folder, uri, _) = dataset();
    let e = error(&["get", &uri, "--direct"]).await;
    assert_eq!(e.kind, Kind::NotFound);
    assert!(e.message.contains("is a folder") && e.message.contains(&format!("`forebay ls {uri}`")), "{e}");
    let e = error(&["get", &format!("{uri}/none"), "--direct"]).await;
    assert!(e.kind == Kind::NotFound && !e.message.contains("folder, not"), "{e}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_split_without_rows_is_named() {
    let (_folder, uri, _) = dataset();
    let e = error(&["epoch", &uri, "--direct", "--split", "5:5"]).await;
    assert_eq!(e.message, format!("{uri}: --split 5:5 has no rows"));
}

#[test]
fn a_log_that_cannot_be_understood_is_told() {
    let told = |value: &str| {
        let filter = LOG.filter(Some(value.to_owned()));
        filter.map(|filter| filter.to_string()).map_err(|e| e.message)
    };
    let e = told("forebay_client=debgu").unwrap_err();
    assert!(e.starts_with("RUST_LOG=forebay_client=debgu: ") && e.contains("debug"), "{e}");
    assert_eq!(told("forebay_client=debug").as_deref(), Ok("forebay_client=debug"));
    assert_eq!(LOG.filter(None).unwrap().to_string(), "off", "unset");
}

#[test]
fn a_seed_below_zero_is_told_as_such() {
    let e = Cli::try_parse_from(["forebay", "epoch", "s3://b/d", "--seed", "-1"]).unwrap_err().to_string();
    assert!(e.contains("invalid value '-1' for '--seed"), "{e}");
}

mod snapshots;
