//! `epochs.svg`: the epochs on a fast accelerator as a picture by itself. docs/demo.svg, which README.md
//! shows, is the one of the figures in docs/benchmarks.md.

use super::super::accelerator::{Accelerated, FASTER, FastWay};
use super::chart::{Bar, HEIGHT, LEFT, WIDTH, drawing, time};
use crate::harness::html::escaped;

/// Room for the title and the legend, for the words below the bars, and at the right.
const ABOVE: f64 = 44.0;
const BELOW: f64 = 46.0;
const RIGHT: f64 = 16.0;

/// It has a paper of its own, so that it can be read on light and on dark pages.
const STYLE: &str = include_str!("picture.css");

/// The whole picture, of the figures of a commit.
pub(super) fn svg(accelerated: &Accelerated, commit: &str) -> String {
    let (width, height) = (WIDTH + RIGHT, ABOVE + HEIGHT + BELOW);
    let title = format!("Seconds per epoch, accelerator {FASTER} times as fast");
    let note = format!("make demo of commit {commit}, {} ms a step", accelerated.step_ms);
    let bars: Vec<Bar> = accelerated.ways.iter().map(bar).collect();
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" role=\"img\" \
         aria-label=\"{title}\">\n<style>\n{STYLE}</style>\n\
         <rect class=\"paper\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"10\"/>\n\
         <text class=\"title\" x=\"16\" y=\"24\">{title}</text>\n\
         <rect class=\"compute\" x=\"{LEFT}\" y=\"37\" width=\"10\" height=\"10\" rx=\"3\"/>\
         <text class=\"key\" x=\"60\" y=\"46\">computing</text>\n\
         <rect class=\"wait\" x=\"140\" y=\"37\" width=\"10\" height=\"10\" rx=\"3\"/>\
         <text class=\"key\" x=\"156\" y=\"46\">waiting for data</text>\n\
         <g transform=\"translate(0 {ABOVE})\">\n{}</g>\n\
         <text class=\"key\" x=\"16\" y=\"{}\">{}</text>\n</svg>\n",
        width - 1.0,
        height - 1.0,
        drawing(&bars),
        height - 12.0,
        escaped(&note),
    )
}

fn bar(way: &FastWay) -> Bar {
    let wait = format!("{:.1} % data wait", 100.0 * way.epoch.data_wait_share);
    let busy = format!("{:.0} % busy", 100.0 * way.busy_share);
    let seconds = format!("{:.2} s", way.epoch.seconds);
    time(way.epoch.seconds, way.epoch.data_wait_share, seconds, vec![way.name.to_owned(), wait, busy])
}

#[cfg(test)]
mod tests {
    use super::super::super::accelerator::tests::accelerated;
    use super::*;

    #[test]
    fn the_picture_of_the_readme_is_drawn_from_the_figures_of_the_benchmarks() {
        let mut shown = accelerated();
        shown.step_ms = 1.116;
        let figures = [
            (3.18480145, 0.6753947339504918, 0.16434431100877575),
            (1.737442852, 0.47013013875314386, 0.30124962061198196),
            (0.891682758, 0.002583900445071542, 0.5869845472553143),
        ];
        for (way, (seconds, wait, busy)) in shown.ways.iter_mut().zip(figures) {
            (way.epoch.seconds, way.epoch.data_wait_share, way.busy_share) = (seconds, wait, busy);
        }
        let picture = svg(&shown, "de1f8d5");
        assert!(picture.len() < 8 << 10, "{} bytes", picture.len());
        assert_eq!(picture, include_str!("../../../../docs/demo.svg"));
        let page = include_str!("../../../../docs/benchmarks.md");
        let said = [
            "Figures of `de1f8d5`",
            "3.18 s / 1.74 s / 0.89 s",
            "67.5 % / 47.0 % / 0.3 %",
            "16 % / 30 % / 59 %",
        ];
        said.into_iter().for_each(|said| assert!(page.contains(said), "the page does not say {said}"));
    }
}
