//! The rounds: every subject once in each, one after the other, so that a minute in which the machine is slow
//! hits them all.

use super::judge;
use super::measured::{MeasuredPeer, print_table};
use super::settings::PeerSettings;
use super::stage::{PeerStage, in_a_line};
use crate::harness::check::Findings;
use std::collections::BTreeMap;
use std::time::Instant;

/// Runs it. `reasons` gets why a subject was not measured, by its name.
pub fn run(settings: &PeerSettings, reasons: &mut BTreeMap<String, String>) -> anyhow::Result<Findings> {
    let began = Instant::now();
    let stage = PeerStage::new(settings)?;
    let mut found = Findings::default();
    let mut subjects = Vec::new();
    for shape in &settings.shapes {
        subjects.extend(settings.peers.iter().map(|peer| MeasuredPeer::new(*shape, *peer)));
    }
    convert(&stage, &mut subjects, &mut found);
    println!("  data made, read once and converted: {:.0} s", began.elapsed().as_secs_f64());
    for round in 1..=settings.rounds {
        let began = Instant::now();
        for subject in subjects.iter_mut().filter(|subject| subject.reason.is_none()) {
            subject.measure(&stage, &mut found)?;
        }
        println!("  round {round} of {}: {:.0} s", settings.rounds, began.elapsed().as_secs_f64());
    }
    for subject in &subjects {
        subject.add_rows(&mut found);
        reasons.extend(subject.reasons());
    }
    print_table(&subjects);
    for shape in &settings.shapes {
        let of_shape = subjects.iter().filter(|subject| subject.shape == *shape && !subject.reads.is_empty());
        judge::judge(&of_shape.collect::<Vec<_>>(), *shape, settings.scale, &mut found);
    }
    Ok(found)
}

/// Lets each format be written once.
fn convert(stage: &PeerStage, subjects: &mut [MeasuredPeer], found: &mut Findings) {
    let mut done: BTreeMap<String, Option<String>> = BTreeMap::new();
    for subject in subjects.iter_mut().filter(|subject| subject.peer.converts) {
        let format = format!("peers.{:?}.{}", subject.shape, subject.peer.script.unwrap_or_default());
        let reason =
            done.entry(format.clone()).or_insert_with(|| match stage.convert(&subject.peer, subject.shape) {
                Ok(conversion) => {
                    found.value(format!("{format}.conversion_s"), "s", conversion.seconds);
                    found.value(format!("{format}.conversion_cpu_s"), "s", conversion.cpu_s);
                    found.value(format!("{format}.converted_mb"), "MB", conversion.bytes as f64 / 1e6);
                    None
                }
                Err(error) => Some(in_a_line(&error)),
            });
        subject.reason = reason.clone();
    }
}
