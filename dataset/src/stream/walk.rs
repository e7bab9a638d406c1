//! A plan ticket, checked once: which rows of which order a stream reads.

use crate::packed::Form;
use forebay_proto::manifest::Manifest;
use forebay_proto::plan::steps::{Cut, Ending, Layout, RowSpan, Slot, Steps};
use forebay_proto::plan::{Order, PlanKey, Sample};
use forebay_proto::{Error, Result, SegmentSet, v1};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The orders in use, one for each plan however many streams follow it.
#[derive(Debug, Default)]
pub struct Orders {
    known: Mutex<HashMap<PlanKey, Weak<Order>>>,
}

/// A checked plan ticket. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PlanWalk {
    /// The plan's order, shared with all streams that follow it.
    pub order: Arc<Order>,
    /// How the order is cut into steps.
    pub cut: Cut,
    /// The rank whose rows are read.
    pub rank: u32,
    /// What the rank reads in each step, where steps are cut by tokens.
    spans: Option<Arc<[RowSpan]>>,
    /// The segments whose rows are read; `None` = all.
    pub wanted: Option<Arc<SegmentSet>>,
    /// Epochs that the run reads after this one, if that is known.
    pub epochs_after: Option<u64>,
    /// The form that the reader asked for.
    pub form: Form,
    /// The reader works out by itself which rows a step holds.
    pub knows_rows: bool,
}

impl Orders {
    /// The order of a plan over `manifest`. An order that is not in use yet is computed: milliseconds for
    /// each 100,000 segments, while others wait. Not for an async thread.
    pub fn of(&self, manifest: &Manifest, key: PlanKey) -> Arc<Order> {
        let mut known = self.known.lock();
        if let Some(order) = known.get(&key).and_then(Weak::upgrade) {
            return order;
        }
        known.retain(|_, order| order.strong_count() > 0);
        let order = Arc::new(Order::new(manifest, key.seed, key.epoch, key.shuffle));
        known.insert(key, Arc::downgrade(&order));
        order
    }
}

impl PlanWalk {
    /// Checks a ticket for `manifest`. `Invalid` says what does not fit. Not for an async thread.
    #[tracing::instrument(level = "trace", skip_all)]
    pub fn new(manifest: &Manifest, ticket: &v1::PlanTicket, orders: &Orders) -> Result<Self> {
        let plan = ticket.plan.clone().ok_or_else(|| Error::invalid("the ticket has no plan"))?;
        let key = PlanKey::try_from(plan)?;
        if key.manifest != manifest.digest() {
            return Err(Error::invalid(format!(
                "the plan is for dataset version {}, {} has {}",
                key.manifest,
                manifest.uri(),
                manifest.digest()
            )));
        }
        let unknown =
            |what| Error::invalid(format!("unknown {what} in the ticket: use equal versions of Forebay"));
        let spans = RowSpan::from_wire(&ticket.row_spans)?;
        let spans: Option<Arc<[_]>> = (!spans.is_empty()).then(|| spans.into());
        // That of spans says only that there are some. They take nothing from the epoch's beginning, but
        // for a row of a rank that has none in the last step.
        let ending = if spans.is_some() { Ending::Drop.into() } else { ticket.ending };
        let cut = Cut {
            first_position: ticket.first_position,
            global_batch: ticket.global_batch,
            world: ticket.world,
            ending: Ending::try_from(ending).map_err(|_| unknown("ending"))?,
            layout: Layout::try_from(ticket.layout).map_err(|_| unknown("layout"))?,
        };
        cut.check()?;
        if ticket.rank >= ticket.world {
            return Err(Error::invalid(format!(
                "rank {} of {}: ranks count from 0",
                ticket.rank, ticket.world
            )));
        }
        let count = manifest.segments().len() as u32;
        let wanted = Some(&ticket.segments).filter(|bytes| !bytes.is_empty());
        let wanted = wanted.map(|bytes| Arc::new(SegmentSet::from_wire(bytes, count)));
        let (rank, epochs_after, knows_rows) = (ticket.rank, ticket.epochs_after, ticket.knows_rows);
        let form = if ticket.packed { Form::Packed } else { Form::Columns };
        let order = orders.of(manifest, key);
        let walk = Self { order, cut, rank, spans, wanted, epochs_after, form, knows_rows };
        walk.steps()?;
        walk.spans.as_deref().map_or(Ok(()), |spans| RowSpan::check(spans, &walk.order))?;
        Ok(walk)
    }

    /// The order, cut into steps.
    pub fn steps(&self) -> Result<Steps<'_>> {
        match &self.spans {
            Some(spans) => Steps::of_spans(&self.order, self.cut, spans),
            None => Steps::new(&self.order, self.cut),
        }
    }

    /// Whether rows of a segment are read.
    pub fn wants(&self, segment: u32) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.contains(segment))
    }

    /// Whether rows of all segments are read, as far as that is known without a look at each.
    pub fn wants_all(&self) -> bool {
        self.wanted.is_none()
    }

    /// Whether steps are cut by tokens.
    pub fn has_spans(&self) -> bool {
        self.spans.is_some()
    }

    /// Bytes that a stream takes for the places of one step's rows, and for what it knows of all steps.
    pub fn step_bytes(&self) -> u64 {
        let (rows, known) = match self.spans.as_deref() {
            Some(spans) => {
                (spans.iter().map(|span| span.rows.into()).max().unwrap_or(0), size_of_val(spans) as u64)
            }
            None => (self.cut.global_batch.div_ceil(u64::from(self.cut.world)), 0),
        };
        rows * size_of::<Slot>() as u64 + known
    }
}

/// The rows of a rows ticket; `Invalid` names the first that does not exist.
pub(super) fn explicit_rows(manifest: &Manifest, ticket: &v1::RowsTicket) -> Result<Vec<Sample>> {
    if ticket.segment.len() != ticket.row.len() {
        return Err(Error::invalid(format!(
            "the ticket names {} segments but {} rows",
            ticket.segment.len(),
            ticket.row.len()
        )));
    }
    let sample = |(&segment, &row): (&u32, &u64)| {
        let rows = manifest.segment(segment)?.rows;
        match row < rows {
            true => Ok(Sample { segment, row: row as u32 }),
            false => Err(Error::invalid(format!(
                "{}: segment {segment} has {rows} rows, there is no row {row}",
                manifest.uri()
            ))),
        }
    };
    ticket.segment.iter().zip(&ticket.row).map(sample).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::manifest::{Object, SegmentSize};
    use forebay_proto::plan::Shuffle;

    #[test]
    fn streams_of_one_plan_share_its_order() {
        let object = Object { key: "o".into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 5, decoded_bytes: 40 };
        let manifest = Manifest::new("s3://b/p", 1, Vec::new(), vec![object], &[size]).unwrap();
        let orders = Orders::default();
        let key = |epoch| PlanKey { manifest: manifest.digest(), seed: 1, epoch, shuffle: Shuffle::Full };
        let (one, other) = (orders.of(&manifest, key(0)), orders.of(&manifest, key(0)));
        assert!(Arc::ptr_eq(&one, &other));
        let next = orders.of(&manifest, key(1));
        assert_eq!(next.key().epoch, 1);
        drop((one, other));
        assert!(orders.known.lock()[&key(0)].upgrade().is_none(), "nobody follows it any more");
        assert_eq!(orders.of(&manifest, key(2)).key().epoch, 2);
        assert_eq!(orders.known.lock().len(), 2);
    }
}
