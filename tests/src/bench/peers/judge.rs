//! The comparison: our shuffled epochs over those of the best peer.

use super::measured::MeasuredPeer;
use super::peer::{Peer, Standing};
use crate::bench::warm::Shape;
use crate::harness::check::Findings;
use crate::harness::report::Row;
use std::iter::zip;

/// Processor time of a row over the best peer's, at most; of X and T.
pub const CPU_AT_MOST: f64 = 0.2;

/// Rows a second over the best peer's, at least.
pub fn least_speed(shape: Shape) -> f64 {
    match shape {
        Shape::X => 10.0,
        Shape::T => 4.0,
        Shape::B => 1.2,
    }
}

/// The same of our package of Python, over the best peer in Python.
pub fn least_speed_in_python(shape: Shape) -> f64 {
    match shape {
        Shape::X => 5.0,
        Shape::T => 4.0,
        Shape::B => 1.2,
    }
}

/// Adds `peers.SHAPE.vs_best` and `.cpu_vs_best`, and the same of our package of Python among the peers in
/// Python, where there is somebody to compare with. Each round is compared by itself; the best peer is the
/// one with the greatest median.
pub fn judge(measured: &[&MeasuredPeer], shape: Shape, scale: f64, found: &mut Findings) {
    let of = |standing| measured.iter().find(|subject| subject.peer.standing == standing).copied();
    let best = |is_rival: &dyn Fn(&Peer) -> bool| {
        let rivals = measured.iter().filter(|subject| is_rival(&subject.peer));
        rivals.max_by(|a, b| speed(a).total_cmp(&speed(b))).copied()
    };
    let rival = best(&|peer| peer.standing == Standing::Rival);
    if let Some((ours, best)) = of(Standing::Ours).zip(rival) {
        let (faster, cheaper) = compared("peers", shape, ours, best);
        promise(found, scale, &faster, Bound::Least(least_speed(shape)), best);
        if shape != Shape::B {
            promise(found, scale, &cheaper, Bound::Most(CPU_AT_MOST), best);
        }
        found.rows.extend([faster, cheaper]);
    }
    if let Some((ours, best)) = of(Standing::OursInPython).zip(best(&Peer::is_in_python)) {
        let (faster, cheaper) = compared("python.peers", shape, ours, best);
        promise(found, scale, &faster, Bound::Least(least_speed_in_python(shape)), best);
        found.rows.extend([faster, cheaper]);
    }
}

/// What a ratio may be.
#[derive(Clone, Copy)]
enum Bound {
    Least(f64),
    Most(f64),
}

fn speed(subject: &MeasuredPeer) -> f64 {
    Row::of("", "", &subject.rows_per_s()).value
}

/// Rows a second, and processor time of a row, over those of the best peer.
fn compared(prefix: &str, shape: Shape, ours: &MeasuredPeer, best: &MeasuredPeer) -> (Row, Row) {
    let row = |what: &str, ours: &[f64], best: &[f64]| {
        let ratios: Vec<f64> = zip(ours, best).map(|(ours, best)| ours / best).collect();
        Row::of(format!("{prefix}.{shape:?}.{what}"), "of the best peer", &ratios)
    };
    let faster = row("vs_best", &ours.rows_per_s(), &best.rows_per_s());
    (faster, row("cpu_vs_best", &ours.cpu_s_per_m_rows(), &best.cpu_s_per_m_rows()))
}

fn promise(found: &mut Findings, scale: f64, row: &Row, bound: Bound, best: &MeasuredPeer) {
    let (kept, wanted) = match bound {
        Bound::Least(least) => (row.value >= least, format!("at least {least}")),
        Bound::Most(most) => (row.value <= most, format!("at most {most}")),
    };
    let text = format!("{} = {:.2} of {}, {wanted} wanted", row.name, row.value, best.peer.name);
    if scale < 1.0 { found.leave_out(text) } else { found.check(kept, text) }
}
