//! What the node says of itself: its datasets, its directories, and the figures of `metrics::table`.

use crate::auth::caller::Caller;
use crate::datasets::Dataset;
use crate::disk::SegmentsHeld;
use crate::disk::dirs::{DirStatus, Health};
use crate::node::Node;
use crate::runtime::blocking;
use crate::service::metrics;
use forebay_proto::{Error, Result, v1};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How long a caller waits while the node looks at itself for others.
const TURN: Duration = Duration::from_secs(10);

/// All of it, with those datasets that the caller may know of. One look at a time: many at once would take
/// all threads for disk work. `Full` if others take all the time.
pub async fn status(node: &Arc<Node>, caller: &Caller, turn: &Arc<Mutex<()>>) -> Result<v1::StatusReply> {
    let full = |_| Error::full("status: this node looks at itself for others all the time: try again");
    let turn = timeout(TURN, turn.clone().lock_owned()).await.map_err(full)?;
    let (looking, who) = (node.clone(), caller.clone());
    // Compares datasets, of which there may be thousands, and counts the segments of new ones: not for an
    // async thread.
    let look = move || {
        // Until it ends, though the caller may have gone.
        let _turn = turn;
        let seen = looking.datasets.held().into_iter().filter(|(d, _)| who.sees_manifest(&d.manifest));
        let (all, counts): (Vec<Dataset>, Vec<SegmentsHeld>) = seen.unzip();
        let of = |(dataset, held)| dataset_status(&looking, dataset, &all, held);
        let datasets = all.iter().zip(counts).map(of).collect();
        (datasets, looking.disk.pinned().0, metrics::figures(&looking))
    };
    let (datasets, pins, figures) = blocking(look).await?;
    let silence = node.object_store_silence();
    Ok(v1::StatusReply {
        node: node.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        uptime_s: node.started.elapsed().as_secs(),
        segments_held: node.disk.segments(),
        datasets,
        pins,
        dirs: node.disk.dirs().into_iter().map(dir).collect(),
        membership: Some(node.membership()),
        load: node.hot.load(),
        object_store_silent_s: silence.as_ref().map_or(0.0, |silence| silence.lasting.as_secs_f64()),
        object_store_error: silence.map(|silence| silence.error).unwrap_or_default(),
        ..figures
    })
}

fn dir(dir: DirStatus) -> v1::DirStatus {
    let health = match dir.health {
        Health::Up => "up",
        Health::Full => "full",
        Health::Away => "away",
    };
    v1::DirStatus {
        path: dir.path.display().to_string(),
        health: health.into(),
        bytes_used: dir.used_bytes,
        bytes_limit: dir.limit_bytes,
    }
}

/// How much of a dataset is here: `held` of its segments.
fn dataset_status(node: &Node, dataset: &Dataset, all: &[Dataset], held: SegmentsHeld) -> v1::DatasetStatus {
    let m = &dataset.manifest;
    let object = m.objects().first().map(|object| m.object_uri(object));
    v1::DatasetStatus {
        uri: m.uri().into(),
        digest: m.digest().to_bytes().to_vec().into(),
        rows: m.rows(),
        segments: m.segments().len() as u64,
        segments_held: held.held,
        replicas: object.map_or(1, |object| node.ownership.replicas(&object) as u32),
        segments_owned: held.owned,
        part: dataset.part(all),
        superseded: node.datasets.is_superseded(dataset),
        filter: dataset.filter().to_owned(),
    }
}

#[cfg(test)]
mod tests;
