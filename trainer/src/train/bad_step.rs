//! Which samples were in the step whose loss is no number, and how to look at them.

use anyhow::Result;
use forebay_client::Dataset;
use forebay_client::args::Fallback;
use forebay_client::loader::{Ending, Layout, Shuffle};
use forebay_proto::plan::Order;
use forebay_proto::plan::steps::{Cut, Steps};

use crate::settings::Settings;

/// Rows that the message names; the command names all.
const NAMED: usize = 12;

/// A step in which a rank found its loss to be no number.
#[derive(Debug, Clone, Copy)]
pub struct BadStep {
    /// Counted from 0.
    pub epoch: u64,
    /// The position in the epoch at which it begins.
    pub position: u64,
    /// Samples of all ranks.
    pub batch: u64,
    /// The rank that saw it.
    pub rank: usize,
    /// Ranks in all.
    pub world: usize,
}

/// The rows (in the dataset, in file order) that the rank took in this step, and the command that shows them.
pub fn describe(settings: &Settings, dataset: &Dataset, shuffle: Shuffle, step: BadStep) -> Result<String> {
    let order = Order::new(&dataset.manifest, settings.seed, step.epoch, shuffle);
    let cut = Cut {
        first_position: step.position,
        global_batch: step.batch,
        world: step.world as u32,
        ending: Ending::Pad,
        layout: Layout::default(),
    };
    let steps = Steps::new(&order, cut)?;
    let mut slots = Vec::new();
    steps.batch(0, step.rank as u32, &mut slots);
    let segments = dataset.manifest.segments();
    let row = |sample: forebay_proto::plan::Sample| {
        segments[sample.segment as usize].first_row + u64::from(sample.row)
    };
    let rows: Vec<_> =
        slots.iter().filter(|slot| steps.is_real(slot)).map(|slot| row(slot.sample).to_string()).collect();
    let more = match rows.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = rows[..rows.len().min(NAMED)].join(", ");
    Ok(format!("its samples are the rows {named}{more}; `{}` shows them", command(settings, shuffle, step)))
}

/// `forebay plan` for a step, to be pasted into a shell.
fn command(settings: &Settings, shuffle: Shuffle, step: BadStep) -> String {
    let mut words = vec!["forebay plan".to_owned()];
    match settings.mix.as_slice() {
        [] => words.push(quoted(&settings.train)),
        parts => {
            let parts: Vec<_> = parts.iter().map(|part| format!("{}={}", part.uri, part.share)).collect();
            words.push(format!("--mix {}", quoted(&parts.join(","))));
        }
    }
    words.extend(settings.split.map(|split| format!("--split {split}")));
    words.extend(settings.filter.as_ref().map(|filter| format!("--where {}", quoted(filter))));
    words.extend(settings.schema_of.as_ref().map(|object| format!("--schema-of {}", quoted(object))));
    words.extend(settings.no_partitions.then(|| "--no-partitions".to_owned()));
    let (endpoints, source) = (&settings.access.endpoint.endpoint, &settings.access.direct_args.source);
    words.extend(settings.access.direct.then(|| "--direct".to_owned()));
    let endpoint = (!endpoints.is_empty()).then(|| endpoints.join(","));
    for (flag, value) in [
        ("--endpoint", &endpoint),
        ("--s3-endpoint", &source.s3_endpoint),
        ("--s3-region", &source.s3_region),
        ("--s3-profile", &source.s3_profile),
    ] {
        words.extend(value.as_ref().map(|value| format!("{flag} {}", quoted(value))));
    }
    for (flag, path) in [
        ("--token-file", &settings.access.endpoint.token_file),
        ("--ca", &settings.access.endpoint.ca),
        ("--cert", &settings.access.endpoint.cert),
        ("--key", &settings.access.endpoint.key),
        ("--s3-ca", &source.s3_ca),
    ] {
        words.extend(path.as_ref().map(|path| format!("{flag} {}", quoted(&path.to_string_lossy()))));
    }
    words.extend((settings.access.fallback == Fallback::Direct).then(|| "--fallback direct".to_owned()));
    words.extend(source.s3_path_style.map(|path_style| format!("--s3-path-style {path_style}")));
    words.extend(source.s3_anonymous.then(|| "--s3-anonymous".to_owned()));
    let batch = step.batch;
    words.push(format!("--seed {} --epoch {} --batch {batch}", settings.seed, step.epoch));
    words.push(format!("--shuffle '{shuffle}'"));
    match step.position % batch {
        0 => words.push(format!("--step {}", step.position / batch)),
        _ => words.push(format!("--first-position {} --step 0", step.position)),
    }
    if step.world > 1 {
        words.push(format!("--world {} --rank {}", step.world, step.rank));
    }
    words.join(" ")
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/:._-=,@%+".contains(c);
    match word.chars().all(plain) && !word.is_empty() {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn settings(line: &[&str]) -> Settings {
        Settings::try_parse_from([&["forebay-train"], line].concat()).unwrap()
    }

    #[test]
    fn the_command_can_be_pasted() {
        let step = BadStep { epoch: 2, position: 640, batch: 64, rank: 1, world: 2 };
        let line = ["--endpoint", "http://n:1", "--train", "s3://b/d", "--batch", "64", "--seed", "9"];
        assert_eq!(
            command(&settings(&line), Shuffle::Window(4), step),
            "forebay plan s3://b/d --endpoint http://n:1 --seed 9 --epoch 2 --batch 64 --shuffle 'window(4)' --step 10 \
             --world 2 --rank 1"
        );
        let line = ["--direct", "--train", "file:///a b", "--split", "0:0.5", "--batch", "64"];
        let alone = BadStep { epoch: 0, position: 100, batch: 64, rank: 0, world: 1 };
        assert_eq!(
            command(&settings(&line), Shuffle::Full, alone),
            "forebay plan 'file:///a b' --split 0.0:0.5 --direct --seed 1 --epoch 0 --batch 64 --shuffle 'full' \
             --first-position 100 --step 0"
        );
        let line =
            ["--direct", "--train", "s3://b/d", "--where", "a > 1", "--schema-of", "x y", "--no-partitions"];
        let chosen = command(&settings(&line), Shuffle::Full, alone);
        assert!(chosen.contains(" --where 'a > 1' --schema-of 'x y' --no-partitions --direct "), "{chosen}");
        let line =
            ["--endpoint", "http://n:1", "--fallback", "direct", "--s3-region", "r", "--train", "s3://b/d"];
        let either = command(&settings(&line), Shuffle::Full, alone);
        assert!(either.contains("--endpoint http://n:1 --s3-region r --fallback direct --seed"), "{either}");
    }
}
