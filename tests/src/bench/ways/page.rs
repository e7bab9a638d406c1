//! `bench.html`: the chart and the table in one file that needs nothing from elsewhere.

use forebay_train::Settings;

use super::way::{HEADS, UTILISATION_WORDS, Way, cells};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#1c2733}\
    svg{width:100%;height:auto}table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;text-align:right;\
    border-bottom:1px solid #d8dee6}th:first-child,td:first-child{text-align:left}.bar{fill:#2a78b5}.wait{fill:#e0a13c}\
    text{font:14px system-ui,sans-serif;fill:#1c2733}small{color:#5b6875}";
const WIDTH: f64 = 640.0;
const LEFT: f64 = 90.0;
const ROW: f64 = 44.0;

/// The whole page.
pub(super) fn html(settings: &Settings, ways: &[Way]) -> String {
    let what = match settings.mix.is_empty() {
        true => settings.train.clone(),
        false => "a mix of datasets".to_owned(),
    };
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>forebay-bench-ways</title>\
         <style>{STYLE}</style></head><body>\n<h1>One training, four ways</h1>\n<p>{} in steps of {} samples. Seconds \
         per epoch; the light part is waiting for data.</p>\n{}{}</body></html>\n",
        escaped(&what),
        settings.batch,
        chart(ways),
        table(ways)
    )
}

/// A bar for each way: its seconds, and the share of them that went into waiting.
fn chart(ways: &[Way]) -> String {
    let seconds = |way: &Way| way.median(|epoch| epoch.seconds).unwrap_or(0.0);
    let longest = ways.iter().map(seconds).fold(f64::MIN_POSITIVE, f64::max);
    let height = ROW * ways.len() as f64;
    let mut text =
        format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Seconds per epoch\">\n");
    for (index, way) in ways.iter().enumerate() {
        let y = ROW * index as f64;
        // Room for the figure behind the longest bar.
        let scale = (WIDTH - LEFT - 90.0) / longest;
        let (all, share) = (seconds(way) * scale, way.median(|epoch| epoch.wait_share).unwrap_or(0.0));
        text += &format!(
            "<text x=\"0\" y=\"{:.1}\">{}</text><rect class=\"bar\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{all:.1}\" \
             height=\"26\"/><rect class=\"wait\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"26\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
            y + 25.0,
            escaped(way.name),
            y + 7.0,
            LEFT + all * (1.0 - share),
            y + 7.0,
            all * share,
            LEFT + all + 8.0,
            y + 25.0,
            cells(way)[0],
        );
    }
    text + "</svg>\n"
}

fn table(ways: &[Way]) -> String {
    let heads: String = HEADS.iter().map(|head| format!("<th>{head}</th>")).collect();
    let row = |way: &Way| {
        let cells: String = cells(way).iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        let (name, what) = (escaped(way.name), escaped(way.what));
        format!("<tr><td>{name}<br><small>{what}</small></td>{cells}</tr>\n")
    };
    let rows: String = ways.iter().map(row).collect();
    let words: String = UTILISATION_WORDS.iter().map(|words| format!("{}<br>", escaped(words))).collect();
    format!("<table><tr>{heads}</tr>\n{rows}</table>\n<p><small>{words}</small></p>\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
