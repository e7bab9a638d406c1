//! The comparison: our shuffled epochs over those of the best peer.

use super::measured::MeasuredPeer;
use super::peer::{Peer, Standing};
use crate::bench::warm::Shape;
use crate::harness::check::Findings;
use crate::harness::report::Row;
use std::iter::zip;

/// Processor time of a row over the best peer's, at most; of X and T.
pub const CPU_AT_MOST: f64 = 0.2;

/// The unit of rows a second over those of one peer.
pub const OF_PEER: &str = "of that peer";

/// Rows a second over the best peer's, at least. Peers do not read N.
pub fn least_speed(shape: Shape) -> f64 {
    match shape {
        Shape::X => 10.0,
        Shape::T => 4.0,
        Shape::B => 1.2,
        Shape::N => f64::INFINITY,
    }
}

/// The same of our package of Python, over the best peer in Python.
pub fn least_speed_in_python(shape: Shape) -> f64 {
    match shape {
        Shape::X => 5.0,
        Shape::T => 4.0,
        Shape::B => 1.2,
        Shape::N => f64::INFINITY,
    }
}

/// Adds `peers.SHAPE.vs_best` and `.cpu_vs_best`, the same by TCP as `peers.tcp.SHAPE`, and the same of our
/// package of Python among the peers in Python, where there is somebody to compare with; and `.vs.PEER` for
/// each of those that may be the best. Each round is compared by itself; the best peer is the one with the
/// greatest median.
pub fn judge(measured: &[&MeasuredPeer], shape: Shape, scale: f64, found: &mut Findings) {
    let of = |standing| measured.iter().find(|subject| subject.peer.standing == standing).copied();
    let rivals = those(measured, |peer| peer.standing == Standing::Rival);
    for (prefix, standing) in [("peers", Standing::Ours), ("peers.tcp", Standing::OursByTcp)] {
        let Some((ours, best)) = of(standing).zip(best(&rivals)) else { continue };
        let (faster, cheaper) = compared(prefix, shape, ours, best);
        promise(found, scale, &faster, Bound::Least(least_speed(shape)), best);
        if shape != Shape::B {
            promise(found, scale, &cheaper, Bound::Most(CPU_AT_MOST), best);
        }
        found.rows.extend([faster, cheaper]);
        found.rows.extend(rivals.iter().map(|rival| faster_than(prefix, shape, ours, rival)));
    }
    let rivals = those(measured, Peer::is_in_python);
    if let Some((ours, best)) = of(Standing::OursInPython).zip(best(&rivals)) {
        let (faster, cheaper) = compared("python.peers", shape, ours, best);
        promise(found, scale, &faster, Bound::Least(least_speed_in_python(shape)), best);
        found.rows.extend([faster, cheaper]);
        found.rows.extend(rivals.iter().map(|rival| faster_than("python.peers", shape, ours, rival)));
    }
}

/// What a ratio may be.
#[derive(Clone, Copy)]
enum Bound {
    Least(f64),
    Most(f64),
}

fn those<'a>(measured: &[&'a MeasuredPeer], is_rival: impl Fn(&Peer) -> bool) -> Vec<&'a MeasuredPeer> {
    measured.iter().copied().filter(|subject| is_rival(&subject.peer)).collect()
}

fn best<'a>(rivals: &[&'a MeasuredPeer]) -> Option<&'a MeasuredPeer> {
    rivals.iter().copied().max_by(|a, b| speed(a).total_cmp(&speed(b)))
}

fn speed(subject: &MeasuredPeer) -> f64 {
    Row::of("", "", &subject.rows_per_s()).value
}

/// Rows a second, and processor time of a row, over those of the best peer.
fn compared(prefix: &str, shape: Shape, ours: &MeasuredPeer, best: &MeasuredPeer) -> (Row, Row) {
    let row = |what: &str, ratios: &[f64]| {
        Row::of(format!("{prefix}.{shape:?}.{what}"), "of the best peer", ratios)
    };
    let faster = row("vs_best", &ratios(&ours.rows_per_s(), &best.rows_per_s()));
    (faster, row("cpu_vs_best", &ratios(&ours.cpu_s_per_m_rows(), &best.cpu_s_per_m_rows())))
}

/// Rows a second over those of one peer, whichever others there are.
fn faster_than(prefix: &str, shape: Shape, ours: &MeasuredPeer, rival: &MeasuredPeer) -> Row {
    let name = format!("{prefix}.{shape:?}.vs.{}", rival.peer.name);
    Row::of(name, OF_PEER, &ratios(&ours.rows_per_s(), &rival.rows_per_s()))
}

/// Round by round.
fn ratios(ours: &[f64], others: &[f64]) -> Vec<f64> {
    zip(ours, others).map(|(ours, other)| ours / other).collect()
}

fn promise(found: &mut Findings, scale: f64, row: &Row, bound: Bound, best: &MeasuredPeer) {
    let (kept, wanted) = match bound {
        Bound::Least(least) => (row.value >= least, format!("at least {least}")),
        Bound::Most(most) => (row.value <= most, format!("at most {most}")),
    };
    let text = format!("{} = {:.2} of {}, {wanted} wanted", row.name, row.value, best.peer.name);
    if scale < 1.0 { found.leave_out(text) } else { found.check(kept, text) }
}

#[cfg(test)]
fn made(name: &str, rows_per_s: f64) -> MeasuredPeer {
    use super::consumer::{Content, PeerEpoch, PeerEpochs};
    use super::peer::ALL;

    let content = Content { rows: 100, checksum: 0 };
    let epoch =
        PeerEpoch { content, seconds: 100.0 / rows_per_s, consumer_s: 0.0, cpu_s: 1.0, first_batch_ms: 1.0 };
    let peer = ALL.iter().find(|peer| peer.name == name).expect(name);
    let mut measured = MeasuredPeer::new(Shape::X, *peer);
    measured.reads.push(PeerEpochs { cannot: None, epochs: vec![epoch; 3], peak_mb: 1.0 });
    measured
}

#[cfg(test)]
fn judged(all: [(&str, f64); 3]) -> Findings {
    let all = all.map(|(name, rows_per_s)| made(name, rows_per_s));
    let mut found = Findings::default();
    judge(&all.each_ref(), Shape::X, 1.0, &mut found);
    found
}

#[test]
fn the_best_peer_is_judged_and_each_peer_has_a_row() {
    let found =
        judged([("forebay.window16", 100.0), ("pyarrow_dataset", 10.0), ("s3.duckdb.sequential", 5.0)]);
    let rows: Vec<_> = found.rows.iter().map(|row| (row.name.as_str(), row.value)).collect();
    let wanted = [
        ("peers.X.vs_best", 10.0),
        ("peers.X.cpu_vs_best", 1.0),
        ("peers.X.vs.pyarrow_dataset", 10.0),
        ("peers.X.vs.s3.duckdb.sequential", 20.0),
    ];
    assert_eq!(rows, wanted);
    assert_eq!(found.broken().lines().count(), 1, "ten times as fast, and as much processor time");
}

#[test]
fn by_tcp_it_is_judged_by_itself() {
    let found =
        judged([("forebay.window16", 100.0), ("forebay.tcp.window16", 50.0), ("pyarrow_dataset", 10.0)]);
    let tcp = found.rows.iter().filter(|row| row.name.starts_with("peers.tcp."));
    let wanted = [
        ("peers.tcp.X.vs_best", 5.0),
        ("peers.tcp.X.cpu_vs_best", 1.0),
        ("peers.tcp.X.vs.pyarrow_dataset", 5.0),
    ];
    assert_eq!(tcp.map(|row| (row.name.as_str(), row.value)).collect::<Vec<_>>(), wanted);
    let broken = found.broken();
    assert!(broken.contains("peers.tcp.X.vs_best") && !broken.contains("peers.X.vs_best"), "{broken}");
}
