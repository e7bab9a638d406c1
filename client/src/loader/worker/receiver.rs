//! The messages of one stream: decoded as they come, checked against the plan, committed when they are whole.

use super::steps_message::StepsMessage;
use crate::loader::decoder::{MessageDecoder, is_schema};
use crate::loader::position::{Advance, Committed, IfFull, Position, Scope, StepRun};
use crate::routing::policy::Failure;
use crate::stream::{Head, StreamEvent};
use forebay_proto::digest::OrderDigest;
use forebay_proto::{Error, Result, v1};
use prost::Message as _;

/// Receives a stream's messages.
pub(super) struct Receiver {
    /// The step at which the stream was asked to begin.
    start: u64,
    position: Position,
    message: Option<Arriving>,
}

/// A message that has begun: one that says its rows, or one of whole steps.
enum Arriving {
    Rows(Box<PartialMessage>),
    Steps(StepsMessage),
}

/// A message whose body is arriving.
struct PartialMessage {
    decoder: MessageDecoder,
    runs: Vec<StepRun>,
    meta: v1::MessageMeta,
    /// Where its rows go and the position after them; `None` if it is held until there is room.
    placed: Option<(Advance, Position)>,
}

impl Receiver {
    pub fn new(start: u64) -> Self {
        Self { start, position: Position::at(start), message: None }
    }

    /// Whether the next event begins a message, or ends the stream.
    pub fn is_between_messages(&self) -> bool {
        self.message.is_none()
    }

    /// Takes the next event. True if it completed a message: its rows are committed, and `committed` says so.
    pub async fn take(
        &mut self,
        event: StreamEvent,
        scope: Scope<'_>,
        committed: &mut Committed,
    ) -> Result<bool, Failure> {
        match (event, &mut self.message) {
            (StreamEvent::Head(head), _) => self.message = self.begin(&head, scope, *committed).await?,
            (StreamEvent::Body(bytes), Some(Arriving::Rows(message))) => message.decoder.push(&bytes),
            (StreamEvent::Shared(bytes), Some(Arriving::Rows(message))) => {
                message.decoder.push_shared(&bytes);
            }
            (StreamEvent::Rows(rows), Some(Arriving::Rows(message))) => {
                message.decoder.push_rows(rows, scope.buffer.schema());
            }
            (StreamEvent::Segments(segments), Some(Arriving::Steps(message))) => {
                message.bring(&segments, &mut self.position, scope, committed).await?;
            }
            (StreamEvent::End, _) => match self.message.take() {
                Some(Arriving::Rows(message)) => {
                    self.end(*message, scope, committed).await?;
                    return Ok(true);
                }
                Some(Arriving::Steps(message)) => {
                    message.end()?;
                    return Ok(true);
                }
                None => {}
            },
            // The message lacks something when it ends.
            _ => {}
        }
        Ok(false)
    }

    /// The stream ended well: checks that it brought all rows up to the epoch's end.
    pub async fn finish(&mut self, scope: Scope<'_>) -> Result<()> {
        self.position.finish(&scope).await
    }

    /// A message begins: finds out where its rows go. `None` for the stream's schema.
    async fn begin(
        &self,
        head: &Head,
        scope: Scope<'_>,
        committed: Committed,
    ) -> Result<Option<Arriving>, Failure> {
        let schema = scope.buffer.message_schema();
        if is_schema(&head.header, schema).map_err(Failure::damaged)? {
            return Ok(None);
        }
        let meta = v1::MessageMeta::decode(head.meta.clone()).map_err(|e| {
            Failure::damaged(Error::corrupt(format!("a message's metadata cannot be read: {e}")))
        })?;
        let mut decoder = MessageDecoder::new(head, schema).map_err(Failure::damaged)?;
        if meta.whole_steps > 0 {
            let message = StepsMessage::new(head, &meta, (self.start, decoder.rows()), scope);
            return Ok(Some(Arriving::Steps(message.map_err(Failure::damaged)?)));
        }
        let runs = step_runs(&meta, self.start, decoder.rows()).map_err(Failure::damaged)?;
        let (mut all, mut after, mut row) = (Advance::default(), self.position.clone(), 0);
        let mut if_full = IfFull::Wait;
        for run in &runs {
            match after.pass(*run, row, &scope, committed, if_full).await? {
                Some(next) => all.append(next),
                None => {
                    decoder.hold(scope.buffer.pool());
                    let message = PartialMessage { decoder, runs, meta, placed: None };
                    return Ok(Some(Arriving::Rows(Box::new(message))));
                }
            }
            row += run.rows;
            if_full = IfFull::Return;
        }
        decoder.scatter(&all.copies, scope.buffer.pool());
        let placed = Some((all, after));
        Ok(Some(Arriving::Rows(Box::new(PartialMessage { decoder, runs, meta, placed }))))
    }

    /// A message is complete: commits its rows.
    async fn end(
        &mut self,
        message: PartialMessage,
        scope: Scope<'_>,
        committed: &mut Committed,
    ) -> Result<(), Failure> {
        let PartialMessage { decoder, runs, meta, placed } = message;
        let buffer = scope.buffer;
        let decoded =
            decoder.complete(meta.hash, buffer.message_schema(), buffer.pool()).map_err(Failure::damaged)?;
        let sent = OrderDigest::from_bytes(&meta.digest)?;
        if let Some((advance, after)) = placed {
            same_digest(advance.digest, sent)?;
            for copy in &advance.copies {
                decoded.commit(copy, buffer)?;
            }
            self.position = after;
            *committed = self.position.committed(scope.segments).max(*committed);
            return Ok(());
        }
        let (mut planned, mut row) = (OrderDigest::default(), 0);
        for run in runs {
            let advance = self.position.pass(run, row, &scope, *committed, IfFull::Wait).await?;
            let advance = advance.ok_or_else(|| Error::corrupt("waiting for room ended without any"))?;
            for copy in &advance.copies {
                decoded.commit(copy, buffer)?;
            }
            *committed = self.position.committed(scope.segments).max(*committed);
            planned.merge(advance.digest);
            row += run.rows;
        }
        Ok(same_digest(planned, sent)?)
    }
}

/// The runs of a message, with steps counted in the epoch; `Corrupt` if they do not make up its rows.
fn step_runs(meta: &v1::MessageMeta, start: u64, rows: u32) -> Result<Vec<StepRun>> {
    let bad = |why: &str| Error::corrupt(format!("a message's runs make no sense: {why}"));
    let told = meta.row_runs()?;
    let mut runs = Vec::with_capacity(told.len());
    let mut total = 0u64;
    for run in told {
        let step = start.checked_add(meta.first_step).and_then(|s| s.checked_add(u64::from(run.step)));
        let step = step.ok_or_else(|| bad("a step is out of range"))?;
        if run.rows == 0 {
            return Err(bad("one is empty"));
        }
        total += u64::from(run.rows);
        runs.push(StepRun { step, segment: run.segment, rows: run.rows });
    }
    match total == u64::from(rows) {
        true => Ok(runs),
        false => Err(bad(&format!("they have {total} rows, the message {rows}"))),
    }
}

fn same_digest(planned: OrderDigest, sent: OrderDigest) -> Result<()> {
    match planned == sent {
        true => Ok(()),
        false => Err(Error::corrupt(format!(
            "a message holds other samples than planned: its digest is {sent}, the plan's {planned}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_proto::Kind;

    #[test]
    fn runs_that_make_no_sense_are_damage() {
        let runs = |runs: &[u32], first_step| {
            let meta = v1::MessageMeta { runs: runs.to_vec(), first_step, ..Default::default() };
            step_runs(&meta, 10, 7).map(|runs| runs.iter().map(|run| run.step).collect::<Vec<_>>())
        };
        assert_eq!(runs(&[0, 5, 3, 2, 6, 4], 1).unwrap(), [11, 13]);
        for (numbers, first_step, why) in [
            (&[0, 5, 7, 2][..], 1, "not triples"),
            (&[0, 5, 7, 0, 5, 0], 1, "one is empty"),
            (&[0, 5, 6], 1, "they have 6 rows, the message 7"),
            (&[0, 5, 7], u64::MAX, "out of range"),
        ] {
            let error = runs(numbers, first_step).unwrap_err();
            assert!(error.kind == Kind::Corrupt && error.message.contains(why), "{error}");
        }
    }
}
