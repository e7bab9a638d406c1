//! `forebay snapshot`: keep a dataset's version under a name, in a cache's etcd or in a file, and forget it
//! again.

use crate::failure::{Failure, usage};
use crate::figures;
use crate::open::open;
use crate::output::{Out, write_json};
use clap::{Args, Subcommand};
use forebay_client::args::{AccessArgs, EndpointArgs};
use forebay_client::snapshot::{SnapshotName, Snapshots, folder, json};
use forebay_client::{DatasetSpec, Endpoints};
use forebay_proto::{Result as Outcome, v1};
use serde_json::{Value, json as value};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Keep the version that a dataset has now: snapshot:NAME is that version wherever a dataset is named
    Save(Box<Save>),
    /// List the snapshots
    List(List),
    /// Show one; with --json what @FILE reads
    #[command(visible_alias = "open")]
    Show(Show),
    /// Forget one; its data stays where it is
    Remove(Remove),
}

/// Where snapshots are.
#[derive(Debug, Args)]
struct Home {
    /// Directory of the snapshots' files [env: FOREBAY_SNAPSHOT_DIR; default: the cache keeps them in etcd]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Save {
    /// Name of the snapshot, or path of its file, as in ./july
    name: String,
    #[command(flatten)]
    dataset: DatasetSpec,
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    home: Home,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct List {
    #[command(flatten)]
    home: Home,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Show {
    /// Name of the snapshot, or path of its file
    name: String,
    #[command(flatten)]
    home: Home,
    #[command(flatten)]
    endpoint: EndpointArgs,
    /// Answer in JSON, with every object
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Remove {
    /// Name of the snapshot, or path of its file
    name: String,
    #[command(flatten)]
    home: Home,
    #[command(flatten)]
    endpoint: EndpointArgs,
}

impl Snapshot {
    pub(crate) async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        match self.action {
            Action::Save(save) => save.run(out).await,
            Action::List(list) => list.run(out).await,
            Action::Show(show) => show.run(out).await,
            Action::Remove(remove) => remove.run(out).await,
        }
    }
}

impl Home {
    /// Where a snapshot is, and its name there. `cache` is asked for only where a cache keeps it.
    fn of(&self, name: &str, cache: impl FnOnce() -> Outcome<Endpoints>) -> Outcome<(Snapshots, String)> {
        let named = SnapshotName::parse(name)?;
        let snapshots = snapshots(named.folder(self.dir.as_deref()), cache)?;
        Ok((snapshots, named.name))
    }
}

fn snapshots(folder: Option<PathBuf>, cache: impl FnOnce() -> Outcome<Endpoints>) -> Outcome<Snapshots> {
    match folder {
        Some(folder) => Ok(Snapshots::Folder(folder)),
        None => cache().map(Snapshots::Cache),
    }
}

impl Save {
    async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        // Before anything is read: a name that will not do, or nowhere to keep it.
        let (snapshots, name) =
            self.home.of(&self.name, || self.access.endpoint.endpoints()).map_err(usage)?;
        let spec = DatasetSpec { version_ids: true, ..self.dataset.clone() };
        let dataset = open(&self.access.access().map_err(usage)?, &spec).await?;
        let snapshot = dataset.snapshot(&name)?;
        snapshots.save(snapshot.clone()).await?;
        if self.json {
            let mut saved = summary(&snapshot);
            saved["version_ids"] = has_version_ids(&snapshot).into();
            return write_json(out, &saved);
        }
        let uri = uri(&snapshots, &self.name, self.home.dir.as_deref());
        writeln!(
            out,
            "{uri}: version {} of {}, {} in {}{}",
            figures::digest(&snapshot.digest),
            dataset.manifest.version_uri(),
            figures::of(snapshot.rows, "row"),
            figures::of(snapshot.objects, "object"),
            match has_version_ids(&snapshot) {
                true => ", which the object store keeps when they are overwritten",
                false => "",
            }
        )?;
        Ok(())
    }
}

/// What reads a snapshot from now on.
fn uri(snapshots: &Snapshots, name: &str, flag: Option<&Path>) -> String {
    match (snapshots, flag) {
        (Snapshots::Folder(folder), Some(_)) if !name.contains('/') => {
            format!("snapshot:{}/{name}", folder.display())
        }
        _ => format!("snapshot:{}", name.trim_start_matches("snapshot:")),
    }
}

impl List {
    async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let snapshots = snapshots(folder(self.home.dir.as_deref()), || self.endpoint.endpoints())?;
        let all = snapshots.list().await?;
        if self.json {
            let all: Vec<Value> = all.iter().map(summary).collect();
            return write_json(out, &value!({ "snapshots": all }));
        }
        if all.is_empty() {
            return Ok(writeln!(out, "no snapshots")?);
        }
        let header = ["snapshot", "dataset", "rows", "objects", "size", "saved", "digest"];
        let mut table = figures::table(&header, &[2, 3, 4]);
        for s in &all {
            let [rows, objects] = [s.rows, s.objects].map(figures::count);
            let (size, digest) = (figures::bytes(s.object_bytes), figures::digest(&s.digest));
            table.add_row([s.name.clone(), dataset_name(s), rows, objects, size, age(s), digest]);
        }
        Ok(writeln!(out, "{}", table.trim_fmt())?)
    }
}

impl Show {
    async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let (snapshots, name) = self.home.of(&self.name, || self.endpoint.endpoints()).map_err(usage)?;
        let snapshot = snapshots.get(&name).await?;
        if self.json {
            return write_json(out, &json(&snapshot));
        }
        for (label, value) in [
            ("dataset", dataset_name(&snapshot)),
            ("version", figures::digest(&snapshot.digest)),
            ("saved", age(&snapshot)),
            ("rows", figures::count(snapshot.rows)),
            ("objects", figures::count(snapshot.objects)),
            ("size", figures::bytes(snapshot.object_bytes)),
        ] {
            writeln!(out, "{label:<10}{value}")?;
        }
        Ok(())
    }
}

impl Remove {
    async fn run(self, out: Out<'_>) -> Result<(), Failure> {
        let (snapshots, name) = self.home.of(&self.name, || self.endpoint.endpoints()).map_err(usage)?;
        snapshots.remove(&name).await?;
        Ok(writeln!(out, "{name}: removed")?)
    }
}

/// All but the objects.
fn summary(s: &v1::Snapshot) -> Value {
    let dataset = s.dataset.clone().unwrap_or_default();
    value!({
        "name": s.name,
        "uri": dataset.uri,
        "where": Some(dataset.filter).filter(|filter| !filter.is_empty()),
        "digest": figures::digest(&s.digest),
        "rows": s.rows,
        "objects": s.objects,
        "object_bytes": s.object_bytes,
        "saved_unix_s": s.saved_unix_s,
    })
}

/// Whether the object store keeps versions of its objects.
fn has_version_ids(s: &v1::Snapshot) -> bool {
    s.dataset.as_ref().is_some_and(|dataset| dataset.objects.iter().any(|o| !o.version_id.is_empty()))
}

/// The URI, and the filter if there is one.
fn dataset_name(s: &v1::Snapshot) -> String {
    let dataset = s.dataset.clone().unwrap_or_default();
    match dataset.filter.as_str() {
        "" => dataset.uri,
        filter => format!("{} where {filter}", dataset.uri),
    }
}

/// How long ago it was saved. Files of `forebay inspect --json` do not say.
#[expect(clippy::disallowed_methods, reason = "people want to know how old a snapshot is")]
fn age(s: &v1::Snapshot) -> String {
    let saved = UNIX_EPOCH + Duration::from_secs(s.saved_unix_s);
    match (s.saved_unix_s, SystemTime::now().duration_since(saved)) {
        (0, _) => String::new(),
        (_, since) => format!("{} ago", figures::duration(since.unwrap_or_default().as_secs())),
    }
}
