use super::*;

/// A dataset with a snapshot `july` of it in a directory of its own.
struct SnapshotFixture {
    data: tempfile::TempDir,
    uri: String,
    snapshots: tempfile::TempDir,
}

impl SnapshotFixture {
    async fn new() -> Self {
        let (data, uri, _) = dataset();
        let fixture = Self { data, uri, snapshots: tempfile::tempdir().unwrap() };
        let output = fixture.snapshot(&["save", "july", &fixture.uri, "--direct"]).await;
        let says = format!("{}: version ", fixture.named());
        assert!(output.starts_with(&says) && output.ends_with("100 rows in 2 objects\n"), "{output}");
        fixture
    }

    fn folder(&self) -> &str {
        self.snapshots.path().to_str().unwrap()
    }

    /// What names the snapshot where a dataset is named.
    fn named(&self) -> String {
        format!("snapshot:{}/july", self.folder())
    }

    async fn snapshot(&self, line: &[&str]) -> String {
        let line = [&["snapshot"], line, &["--dir", self.folder()]].concat();
        String::from_utf8(forebay(&line).await.unwrap_or_else(|e| panic!("{e:?}"))).unwrap()
    }

    async fn refused(&self, line: &[&str]) -> String {
        error(&[&["snapshot"], line, &["--dir", self.folder()]].concat()).await.message
    }
}

async fn answer(line: &[&str]) -> Value {
    serde_json::from_slice(&forebay(&[line, &["--direct", "--json"]].concat()).await.unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_what_was_saved_after_objects_were_added() {
    let fixture = SnapshotFixture::new().await;
    let (uri, named) = (fixture.uri.as_str(), fixture.named());
    let (version, epoch) = (answer(&["inspect", uri]).await, answer(&["epoch", uri]).await);
    let rows = forebay(&["cat", uri, "--direct"]).await.unwrap();
    let step = answer(&["plan", uri, "--batch", "10", "--step", "3"]).await;
    write(&fixture.data.path().join("a2.parquet"), &batch(500, 10));
    assert_eq!(answer(&["inspect", uri]).await["rows"], 110);
    let then = answer(&["inspect", &named]).await;
    for field in ["uri", "digest", "rows", "objects", "segments"] {
        assert_eq!(then[field], version[field], "{field}");
    }
    let read = answer(&["epoch", &named]).await;
    assert_eq!(read["epochs"][0]["order_digest"], epoch["epochs"][0]["order_digest"]);
    assert_eq!(forebay(&["cat", &named, "--direct"]).await.unwrap(), rows);
    assert_eq!(answer(&["plan", &named, "--batch", "10", "--step", "3"]).await, step);
    assert_eq!(answer(&["inspect", &named, "--split", "0.5:1.0"]).await["rows"], 50);
    assert_eq!(answer(&["inspect", &named, "--where", "id < 7"]).await["rows"], 7);
    let file = format!("@{}/july.json", fixture.folder());
    assert_eq!(
        answer(&["inspect", &file]).await["digest"],
        version["digest"],
        "it is a file of the known form"
    );
}

#[tokio::test]
async fn snapshots_are_listed_shown_and_removed() {
    let fixture = SnapshotFixture::new().await;
    fixture.snapshot(&["save", "few", &fixture.uri, "--where", "id < 7", "--direct"]).await;
    let all = fixture.snapshot(&["list"]).await;
    let lines: Vec<_> = all.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(lines, ["snapshot", "few", "july"], "{all}");
    assert!(all.contains(&format!("{} where id < 7 ", fixture.uri)), "{all}");
    let listed: Value = serde_json::from_str(&fixture.snapshot(&["list", "--json"]).await).unwrap();
    assert_eq!(listed["snapshots"][0]["rows"], 7);
    let shown = fixture.snapshot(&["open", "july"]).await;
    assert!(shown.contains(&format!("dataset   {}\n", fixture.uri)) && shown.contains(" s ago\n"), "{shown}");
    let version: Value = serde_json::from_str(&fixture.snapshot(&["show", "july", "--json"]).await).unwrap();
    assert_eq!(version["objects"][1]["key"], "b.parquet");
    assert_eq!(fixture.snapshot(&["remove", "july"]).await, "july: removed\n");
    assert_eq!(fixture.snapshot(&["list"]).await.lines().count(), 2);
    let e = error(&["cat", &fixture.named(), "--direct"]).await;
    assert_eq!(e.kind, Kind::NotFound);
    assert!(e.message.contains("no snapshot `july`") && e.message.contains("snapshot list"), "{e}");
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_is_refused_with_the_remedy() {
    let fixture = SnapshotFixture::new().await;
    let uri = fixture.uri.as_str();
    fixture.snapshot(&["save", "july", uri, "--direct"]).await;
    write(&fixture.data.path().join("c.parquet"), &batch(500, 10));
    for (line, says) in [
        (&["save", "july", uri, "--direct"][..], "choose another name"),
        (&["save", "a b", uri, "--direct"], "`a b` cannot be a snapshot's name"),
        (&["save", "half", uri, "--split", "0.5:1.0", "--direct"], "keeps all rows"),
        (&["show", "june"], "no snapshot `june`"),
        (&["remove", "june"], "no snapshot `june`"),
    ] {
        let message = fixture.refused(line).await;
        assert!(message.contains(says), "{message}");
    }
    for (line, says) in [
        (&["cat", "snapshot:july"][..], "FOREBAY_SNAPSHOT_DIR"),
        (&["cat", "snapshot:"], "cannot be a snapshot's name"),
        (&["epoch", "--mix", "snapshot:july=0.5,s3://b/x=0.5"], "a mix has no lists and no snapshots"),
    ] {
        let e = error(&[line, &["--direct"]].concat()).await;
        assert!(e.message.contains(says), "{e}");
    }
    let file = fixture.snapshots.path().join("july.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let version: Value = serde_json::from_str(&text).unwrap();
    std::fs::write(&file, text.replace(version["digest"].as_str().unwrap(), &"0".repeat(32))).unwrap();
    let e = error(&["inspect", &fixture.named(), "--direct"]).await;
    assert_eq!(e.kind, Kind::Changed);
    assert!(e.message.contains("it was saved as version") && e.message.contains(&fixture.named()), "{e}");
}

#[tokio::test]
async fn objects_that_are_no_longer_what_they_were_are_named() {
    let fixture = SnapshotFixture::new().await;
    let named = fixture.named();
    let path = fixture.data.path().join("b.parquet");
    for (what, says) in
        [(Some(batch(60, 39)), "b.parquet: was overwritten since"), (None, "b.parquet: was deleted since")]
    {
        match what {
            Some(rows) => write(&path, &rows),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let e = error(&["cat", &named, "--direct"]).await;
        for part in [named.as_str(), says, "save a new snapshot"] {
            assert!(e.message.contains(part), "{e}");
        }
    }
}
