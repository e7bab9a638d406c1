//! The comparison: our shuffled epochs over those of the best peer.

use super::measured::MeasuredPeer;
use super::peer::Standing;
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

/// Adds `peers.SHAPE.vs_best` and `.cpu_vs_best`, where there is somebody to compare with. Each round is
/// compared by itself; the best peer is the one with the greatest median.
pub fn judge(measured: &[&MeasuredPeer], shape: Shape, scale: f64, found: &mut Findings) {
    let ours = measured.iter().find(|subject| subject.peer.standing == Standing::Ours);
    let rivals = measured.iter().filter(|subject| subject.peer.standing == Standing::Rival);
    let speed = |subject: &MeasuredPeer| Row::of("", "", &subject.rows_per_s()).value;
    let best = rivals.max_by(|a, b| speed(a).total_cmp(&speed(b)));
    let (Some(ours), Some(best)) = (ours, best) else { return };
    let row = |what: &str, ours: &[f64], best: &[f64]| {
        let ratios: Vec<f64> = zip(ours, best).map(|(ours, best)| ours / best).collect();
        Row::of(format!("peers.{shape:?}.{what}"), "of the best peer", &ratios)
    };
    let faster = row("vs_best", &ours.rows_per_s(), &best.rows_per_s());
    let cheaper = row("cpu_vs_best", &ours.cpu_s_per_m_rows(), &best.cpu_s_per_m_rows());
    let mut promise = |row: &Row, kept: bool, side: &str, bound: f64| {
        let text = format!("{} = {:.2} of {}, at {side} {bound} wanted", row.name, row.value, best.peer.name);
        if scale < 1.0 { found.leave_out(text) } else { found.check(kept, text) }
    };
    let least = least_speed(shape);
    promise(&faster, faster.value >= least, "least", least);
    if shape != Shape::B {
        promise(&cheaper, cheaper.value <= CPU_AT_MOST, "most", CPU_AT_MOST);
    }
    found.rows.extend([faster, cheaper]);
}
