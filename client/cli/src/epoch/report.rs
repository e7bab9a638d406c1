//! What an epoch came to: the numbers, the row of the table, and the JSON.

use crate::figures;
use forebay_proto::digest::{ContentDigest, OrderDigest};
use forebay_proto::v1::Counters;
use serde::Serialize;

/// One epoch, measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct EpochRow {
    pub epoch: u64,
    /// Where the bytes came from: `s3` (`files` for file://), `cache`, `memory` (of this process), or
    /// `mixed`.
    pub source: &'static str,
    #[serde(flatten)]
    pub read: Read,
    pub samples_per_s: f64,
    pub mb_per_s: f64,
    /// Share of the time that ranks waited for data.
    pub data_wait_pct: f64,
    pub order_digest: String,
    /// With --verify.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_digest: Option<String>,
    /// None if the cache does not tell, as one with a policy does without the role `metrics`.
    #[serde(flatten)]
    pub cost: Option<Counters>,
}

/// What the ranks counted in one epoch.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Read {
    pub seconds: f64,
    /// Samples delivered, padding left out.
    pub samples: u64,
    /// Arrow bytes delivered.
    pub bytes: u64,
    pub steps: u64,
    /// From the beginning until every rank had its first batch.
    pub first_batch_s: f64,
    /// Processor time of this process.
    pub cpu_s: f64,
    /// Seconds of waiting for data, over all ranks.
    #[serde(skip)]
    pub wait_s: f64,
    #[serde(skip)]
    pub ranks: u32,
    #[serde(skip)]
    pub digest: OrderDigest,
    #[serde(skip)]
    pub content: Option<ContentDigest>,
}

impl Read {
    pub(super) fn add_content(&mut self, content: Option<ContentDigest>) {
        if let Some(content) = content {
            self.content.get_or_insert_default().merge(content);
        }
    }
}

/// Where the bytes of a dataset can come from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub segments: u64,
    pub files: bool,
    pub direct: bool,
}

impl EpochRow {
    pub(super) fn new(epoch: u64, read: Read, cost: Option<Counters>, place: Place) -> Self {
        let waited = figures::rate(read.wait_s, read.seconds * f64::from(read.ranks));
        Self {
            epoch,
            source: source(&read, cost.as_ref(), place),
            samples_per_s: figures::rate(read.samples as f64, read.seconds),
            mb_per_s: figures::rate(read.bytes as f64 / 1e6, read.seconds),
            data_wait_pct: 100.0 * waited.min(1.0),
            order_digest: read.digest.to_string(),
            content_digest: read.content.map(|content| content.to_string()),
            read,
            cost,
        }
    }

    /// The row of the table. Widths are fixed, so that rows can be printed as epochs end.
    pub(super) fn line(&self) -> String {
        let read = &self.read;
        let cost =
            |figure: fn(&Counters) -> String| self.cost.as_ref().map_or_else(|| "-".to_owned(), figure);
        let source = if self.source == "s3" { "S3" } else { self.source };
        let content = self.content_digest.as_ref().map(|digest| format!("  {digest}")).unwrap_or_default();
        let cells = line([
            self.epoch.to_string(),
            source.to_owned(),
            format!("{:.3}", read.seconds),
            figures::count(read.samples),
            figures::count(self.samples_per_s.round() as u64),
            format!("{:.1}", self.mb_per_s),
            format!("{:.1} %", self.data_wait_pct),
            cost(|cost| figures::count(cost.s3_requests)),
            cost(|cost| figures::bytes(cost.s3_bytes)),
            cost(|cost| figures::bytes(cost.s3_footer_bytes)),
            cost(|cost| figures::bytes(cost.parquet_bytes_decoded)),
            self.order_digest.clone(),
        ]);
        cells + &content
    }
}

/// All from the object store when every segment was filled, or when at least as much was decoded as was
/// delivered.
fn source(read: &Read, cost: Option<&Counters>, place: Place) -> &'static str {
    let Some(cost) = cost else { return "cache" };
    let nearly_all = |part: u64, whole: u64| part as f64 >= 0.9 * whole as f64;
    if cost.s3_requests == 0 && cost.parquet_bytes_decoded == 0 {
        return if place.direct { "memory" } else { "cache" };
    }
    match nearly_all(cost.misses, place.segments) || nearly_all(cost.arrow_bytes_decoded, read.bytes) {
        true if place.files => "files",
        true => "s3",
        false => "mixed",
    }
}

/// Columns of the table and how wide each is; the last is as wide as it comes.
const COLUMNS: [(&str, usize); 12] = [
    ("epoch", 5),
    ("source", 6),
    ("seconds", 8),
    ("samples", 12),
    ("samples/s", 12),
    ("MB/s", 9),
    ("data wait", 9),
    ("S3 requests", 11),
    ("S3 bytes", 9),
    ("footers", 9),
    ("Parquet decoded", 15),
    ("order digest", 0),
];

/// The table's head; with --verify each line has the content digest too.
pub(super) fn head(verify: bool) -> String {
    let head = line(COLUMNS.map(|(name, _)| name.to_owned()));
    // As far as an order digest is wide.
    if verify { format!("{head:<width$}  content digest", width = head.len() + 20) } else { head }
}

fn line(cells: [String; COLUMNS.len()]) -> String {
    let cells = cells.iter().zip(COLUMNS).map(|(cell, (_, width))| format!("{cell:>width$}"));
    cells.collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { segments: 10, files: false, direct: false };

    #[test]
    fn where_the_bytes_came_from() {
        let read = Read { bytes: 1000, ..Default::default() };
        let cost = |s3_requests, misses, arrow_bytes_decoded| Counters {
            s3_requests,
            misses,
            arrow_bytes_decoded,
            ..Default::default()
        };
        let source = |cost: Counters, place| source(&read, Some(&cost), place);
        assert_eq!(source(cost(0, 0, 0), PLACE), "cache");
        assert_eq!(source(cost(0, 0, 0), Place { direct: true, ..PLACE }), "memory");
        assert_eq!(source(cost(9, 10, 900), PLACE), "s3");
        assert_eq!(source(cost(9, 10, 100), PLACE), "s3", "every segment was filled");
        assert_eq!(source(cost(3, 3, 300), PLACE), "mixed");
        assert_eq!(source(cost(9, 10, 900), Place { files: true, ..PLACE }), "files");
    }

    #[test]
    fn rows_line_up_with_their_head() {
        let read = Read {
            seconds: 2.0,
            samples: 60_000,
            bytes: 47_000_000,
            wait_s: 3.0,
            ranks: 2,
            ..Default::default()
        };
        let cost = Counters { s3_requests: 16, s3_bytes: 9_912_422, misses: 10, ..Default::default() };
        let row = EpochRow::new(0, read, Some(cost), PLACE);
        assert_eq!((row.samples_per_s, row.mb_per_s, row.data_wait_pct), (30_000.0, 23.5, 75.0));
        let (head, line) = (head(false), row.line());
        let end_of = |text: &str, cell: &str| text.find(cell).map(|i| i + cell.len());
        assert_eq!(end_of(&head, "samples/s"), end_of(&line, "30,000"));
        assert_eq!(end_of(&head, "S3 bytes"), end_of(&line, "9.91 MB"));
        assert!(line.ends_with(&"0".repeat(32)), "{line}");
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((json["s3_bytes"].as_u64(), json["source"].as_str()), (Some(9_912_422), Some("s3")));
        let untold = EpochRow::new(0, read, None, PLACE);
        assert_eq!(end_of(&head, "S3 requests"), end_of(&untold.line(), "75.0 %            -"));
        assert_eq!(serde_json::to_value(&untold).unwrap().get("s3_bytes"), None);
    }

    #[test]
    fn an_epoch_of_no_time_is_not_infinitely_fast() {
        let row = EpochRow::new(0, Read::default(), Some(Counters::default()), PLACE);
        assert_eq!((row.samples_per_s, row.mb_per_s, row.data_wait_pct), (0.0, 0.0, 0.0));
    }
}
