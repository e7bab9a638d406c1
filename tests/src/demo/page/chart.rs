//! The charts of the page, as inline SVG: the time of each epoch, its bytes from S3, and the time of epochs
//! on a fast accelerator. The picture of the latter is drawn by the same functions.

use super::super::accelerator::{Accelerated, FASTER};
use super::super::figures::TrainedEpoch;
use super::super::table::megabytes;
use crate::harness::html::escaped;

pub(super) const WIDTH: f64 = 440.0;
pub(super) const HEIGHT: f64 = 260.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 40.0;
pub(super) const LEFT: f64 = 44.0;
/// Bars are no wider than this, however few there are.
const BAR: f64 = 56.0;
/// From one line of words below a bar to the next.
const LINE: f64 = 16.0;

/// One bar: its parts from the bottom up (class, value, what it says when pointed at), the text above it, and
/// the lines below it. The page has room for one line.
pub(super) struct Bar {
    parts: Vec<(&'static str, f64, String)>,
    above: String,
    below: Vec<String>,
}

/// The colours of [`time`].
const LEGEND: &str = "<span class=\"key\"><i class=\"compute\"></i>computing</span>\
                      <span class=\"key\"><i class=\"wait\"></i>waiting for data</span>";

/// All charts, each with its title and legend.
pub(super) fn all(epochs: &[TrainedEpoch], accelerated: &Accelerated) -> String {
    let times = epochs.iter().map(|epoch| {
        time(
            epoch.seconds,
            epoch.data_wait_share,
            format!("{:.0} samples/s", epoch.samples_per_s),
            vec![label(epoch)],
        )
    });
    let fast = accelerated.ways.iter().map(|way| {
        let busy = format!("{:.0} % busy", 100.0 * way.busy_share);
        time(way.epoch.seconds, way.epoch.data_wait_share, busy, vec![way.name.to_owned()])
    });
    let bytes = epochs.iter().map(|epoch| Bar {
        parts: vec![(
            "s3",
            epoch.s3_bytes as f64 / 1e6,
            format!("{} requests, {} MB", epoch.s3_requests, megabytes(epoch.s3_bytes)),
        )],
        above: format!("{} MB", megabytes(epoch.s3_bytes)),
        below: vec![label(epoch)],
    });
    figure("Seconds per epoch", LEGEND, &times.collect::<Vec<_>>())
        + &figure(
            "Megabytes from S3 per epoch",
            "<span class=\"key\">footers apart</span>",
            &bytes.collect::<Vec<_>>(),
        )
        + &figure(
            &format!("Seconds per epoch, accelerator {FASTER} times as fast"),
            LEGEND,
            &fast.collect::<Vec<_>>(),
        )
}

/// An epoch's time, and the part of it that went into waiting.
pub(super) fn time(seconds: f64, wait_share: f64, above: String, below: Vec<String>) -> Bar {
    let wait = seconds * wait_share;
    let parts = vec![
        ("compute", seconds - wait, format!("{:.1} s computing", seconds - wait)),
        ("wait", wait, format!("{wait:.1} s waiting for data")),
    ];
    Bar { parts, above, below }
}

fn label(epoch: &TrainedEpoch) -> String {
    format!("{} · {}", epoch.epoch + 1, epoch.source)
}

fn figure(title: &str, legend: &str, bars: &[Bar]) -> String {
    format!(
        "<figure>\n<figcaption><b>{title}</b><span>{legend}</span></figcaption>\n{}</figure>\n",
        svg(title, bars)
    )
}

fn svg(title: &str, bars: &[Bar]) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
        escaped(title),
        drawing(bars)
    )
}

/// The inside of a chart: the grid and the bars. It is [`WIDTH`] wide and [`HEIGHT`] high.
pub(super) fn drawing(bars: &[Bar]) -> String {
    let total = |bar: &Bar| bar.parts.iter().map(|part| part.1).sum::<f64>();
    let step = tick_step(bars.iter().map(total).fold(0.0, f64::max));
    let ticks = (bars.iter().map(total).fold(0.0, f64::max) / step).ceil().max(1.0);
    let y = |value: f64| HEIGHT - BOTTOM - value / (ticks * step) * (HEIGHT - TOP - BOTTOM);
    let mut text = String::new();
    for tick in 0..=ticks as u32 {
        let value = f64::from(tick) * step;
        let line = y(value);
        text += &format!(
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{line:.1}\" y2=\"{line:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            LEFT - 8.0,
            line + 4.0,
            number(value, step),
        );
    }
    let slot = (WIDTH - LEFT) / bars.len().max(1) as f64;
    for (index, bar) in bars.iter().enumerate() {
        text += &column(bar, LEFT + slot * (index as f64 + 0.5), slot, y);
    }
    text
}

fn column(bar: &Bar, middle: f64, slot: f64, y: impl Fn(f64) -> f64) -> String {
    let width = (slot * 0.6).min(BAR);
    let mut text = String::new();
    let mut base = 0.0;
    for (class, value, hint) in &bar.parts {
        // Two units of air between the parts of a bar, where there is room.
        let gap = if base > 0.0 { 2.0 } else { 0.0 };
        let height = y(base) - y(base + value) - gap;
        if height > 0.5 {
            text += &format!(
                "<rect class=\"{class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"3\">\
                 <title>{}</title></rect>\n",
                middle - width / 2.0,
                y(base + value),
                escaped(hint),
            );
        }
        base += value;
    }
    // With many bars only every other slot or so has room for words.
    if slot >= 60.0 {
        let mut say = |class: &str, y: f64, words: &str| {
            let words = escaped(words);
            text += &format!("<text class=\"{class}\" x=\"{middle:.1}\" y=\"{y:.1}\">{words}</text>\n");
        };
        say("above", y(base) - 8.0, &bar.above);
        for (line, words) in bar.below.iter().enumerate() {
            say("below", HEIGHT - BOTTOM + 20.0 + LINE * line as f64, words);
        }
    }
    text
}

/// A round step that cuts `0..max` into at most five.
fn tick_step(max: f64) -> f64 {
    let rough = if max > 0.0 { max / 5.0 } else { 0.2 };
    let power = 10f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    round.unwrap_or(10.0) * power
}

/// A tick's value, with as many digits as tell it from its neighbours.
fn number(value: f64, step: f64) -> String {
    let digits: usize = if value == 0.0 || step > 0.99 { 0 } else { 1 + usize::from(step < 0.099) };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_few() {
        for (max, step) in
            [(0.0, 0.2), (1.0, 0.2), (4.9, 1.0), (10.6, 5.0), (47.0, 10.0), (100.0, 20.0), (0.03, 0.01)]
        {
            assert!((tick_step(max) / step - 1.0).abs() < 1e-9, "{max}: {}", tick_step(max));
        }
    }

    #[test]
    fn ticks_differ_from_their_neighbours() {
        let ticks = |step: f64| [0.0, 1.0, 2.0, 3.0].map(|tick| number(tick * step, step));
        assert_eq!(ticks(0.5), ["0", "0.5", "1.0", "1.5"]);
        assert_eq!(ticks(2.0), ["0", "2", "4", "6"]);
        assert_eq!(ticks(0.02), ["0", "0.02", "0.04", "0.06"]);
    }
}
