//! The demo's claims, each a check of measured figures.

use super::figures::{TrainedEpoch, Training};
use super::job::Outcome;
use super::options::DemoOptions;
use crate::harness::check::Check;

/// At most this many bytes may leave S3 per byte of the columns read; footers are counted apart.
const COLD_RATIO_BAR: f64 = 1.02;

/// All checks, in the order in which they are shown.
pub(super) fn all(options: &DemoOptions, outcome: &Outcome) -> Vec<Check> {
    let training = &outcome.training;
    vec![
        accuracy(options, training),
        cold_once(training),
        warm_without_s3(training),
        warm_without_decoding(training),
        same_parameters(options, training),
        same_order(options, outcome),
        reread_without_s3(outcome),
        counted_alike(outcome),
        same_order_when_faster(outcome),
        warm_when_faster(outcome),
    ]
}

/// Bytes that left S3 in the first epoch per byte of the columns read.
pub(super) fn cold_ratio(training: &Training) -> f64 {
    let ratio = |epoch: &TrainedEpoch| epoch.s3_bytes as f64 / epoch.projected_bytes as f64;
    training.epochs.first().map_or(f64::NAN, ratio)
}

fn accuracy(options: &DemoOptions, training: &Training) -> Check {
    let bar = options.accuracy_bar();
    let short = if options.short { " (short form: the bar is lower)" } else { "" };
    let claim = format!("test accuracy is at least {bar}{short}");
    Check::of(claim, format!("{:.4}", training.test_accuracy), training.test_accuracy >= bar)
}

fn cold_once(training: &Training) -> Check {
    let ratio = cold_ratio(training);
    Check::of(
        format!("the cold epoch takes each byte from S3 once (at most {COLD_RATIO_BAR}, footers apart)"),
        format!("{ratio:.4}"),
        (1.0..=COLD_RATIO_BAR).contains(&ratio),
    )
}

fn warm_without_s3(training: &Training) -> Check {
    let requests: u64 =
        training.warm().iter().map(|epoch| epoch.s3_requests + epoch.s3_footer_requests).sum();
    let passed = requests == 0 && !training.warm().is_empty();
    Check::of("warm epochs send no request to S3", format!("{requests} requests"), passed)
}

fn warm_without_decoding(training: &Training) -> Check {
    let bytes: u64 = training.warm().iter().map(|epoch| epoch.parquet_bytes_decoded).sum();
    let passed = bytes == 0 && !training.warm().is_empty();
    Check::of("warm epochs decode no Parquet", format!("{bytes} bytes"), passed)
}

fn same_parameters(options: &DemoOptions, training: &Training) -> Check {
    let hashes = &training.parameter_hashes;
    let passed = hashes.len() == options.nproc as usize && hashes.windows(2).all(|pair| pair[0] == pair[1]);
    Check::of("all ranks end with the same parameters", hashes.join(" "), passed)
}

fn same_order(options: &DemoOptions, outcome: &Outcome) -> Check {
    let (trained, alone) = (&outcome.training.epochs, &outcome.reread.epochs);
    let equal = trained.len() == alone.len()
        && trained
            .iter()
            .zip(alone)
            .all(|(a, b)| a.epoch == b.epoch && a.samples == b.samples && a.order_digest == b.order_digest);
    let passed = equal && outcome.training.global_batch == options.batch && !trained.is_empty();
    let measured = if equal {
        format!("{} epochs alike", trained.len())
    } else {
        let digests = |list: Vec<&str>| list.join(" ");
        let trained = digests(trained.iter().map(|epoch| epoch.order_digest.as_str()).collect());
        let alone = digests(alone.iter().map(|epoch| epoch.order_digest.as_str()).collect());
        format!("{trained} against {alone}")
    };
    Check::of(format!("{} ranks and 1 rank see the same order (digests)", options.nproc), measured, passed)
}

fn reread_without_s3(outcome: &Outcome) -> Check {
    let bytes = outcome.passed_reread.object_bytes;
    let measured = format!("{bytes} bytes of objects passed the proxy");
    Check::of("reading the epochs once more takes nothing from S3", measured, bytes == 0)
}

/// The proxy counts by itself; the cache's own counters must agree.
fn counted_alike(outcome: &Outcome) -> Check {
    let (served, passed) = (&outcome.served, &outcome.passed);
    let requests = served.s3_requests + served.s3_footer_requests + served.s3_retries;
    let bytes = served.s3_bytes + served.s3_footer_bytes;
    Check::of(
        "the cache's count of S3 requests and bytes is the proxy's",
        format!("{requests} and {bytes}, {} and {}", passed.requests, passed.object_bytes),
        requests == passed.requests && bytes == passed.object_bytes,
    )
}

/// Without a cache, cold and warm, another consumer sees what the training saw.
fn same_order_when_faster(outcome: &Outcome) -> Check {
    let seen: Vec<&str> =
        outcome.accelerated.ways.iter().map(|way| way.epoch.order_digest.as_str()).collect();
    let trained: Vec<&str> =
        outcome.training.epochs.iter().map(|epoch| epoch.order_digest.as_str()).collect();
    let passed = trained.len() >= 2 && seen == [trained[0], trained[0], trained[1]];
    Check::of("without a cache, cold and warm: the order of the training", seen.join(" "), passed)
}

fn warm_when_faster(outcome: &Outcome) -> Check {
    let epoch = &outcome.accelerated.ways[2].epoch;
    let (requests, bytes) = (epoch.s3_requests, epoch.parquet_bytes_decoded);
    let measured = format!("{requests} requests, {bytes} bytes decoded");
    Check::of("the fast accelerator's warm epoch is warm", measured, requests == 0 && bytes == 0)
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::super::accelerator::tests::accelerated;
    use super::super::figures::{NodeCounters, tests::training};
    use super::*;
    use crate::harness::answers::{EpochReport, EpochsReport};
    use crate::harness::slow::Passed;

    pub(crate) fn options() -> DemoOptions {
        DemoOptions::parse_from(["forebay-demo", "--epochs", "2"])
    }

    pub(crate) fn outcome() -> Outcome {
        let training = training();
        let alone = |epoch: &TrainedEpoch| EpochReport {
            epoch: epoch.epoch,
            samples: epoch.samples,
            order_digest: epoch.order_digest.clone(),
            ..Default::default()
        };
        let reread = EpochsReport { epochs: training.epochs.iter().map(alone).collect() };
        let served = NodeCounters {
            s3_requests: 28,
            s3_bytes: 12_000_000,
            s3_footer_requests: 12,
            s3_footer_bytes: 600_000,
            s3_retries: 0,
        };
        let passed = Passed { requests: 40, object_bytes: 12_600_000, ..Default::default() };
        Outcome {
            training,
            reread,
            served,
            passed,
            passed_reread: Passed::default(),
            accelerated: accelerated(),
            dataset_bytes: 12_300_000,
            seconds: 61.5,
        }
    }

    type Fault = fn(&mut Outcome);

    fn failed(change: impl FnOnce(&mut Outcome)) -> Vec<String> {
        let mut outcome = outcome();
        change(&mut outcome);
        all(&options(), &outcome).into_iter().filter(Check::is_broken).map(|check| check.claim).collect()
    }

    #[test]
    fn a_good_run_passes_and_each_fault_is_seen() {
        assert_eq!(failed(|_| ()), [""; 0]);
        let faults: [(Fault, &str); 11] = [
            (|o| o.training.test_accuracy = 0.97, "test accuracy is at least 0.98"),
            (|o| o.training.test_accuracy = f64::NAN, "test accuracy"),
            (|o| o.training.epochs[0].s3_bytes *= 2, "the cold epoch"),
            (|o| o.training.epochs[0].s3_bytes = 0, "the cold epoch"),
            (|o| o.training.epochs[1].s3_requests = 1, "warm epochs send no request"),
            (|o| o.training.epochs[1].parquet_bytes_decoded = 1, "warm epochs decode"),
            (|o| o.training.parameter_hashes[1] = "1".into(), "all ranks end"),
            (|o| o.reread.epochs[1].order_digest = "1".into(), "2 ranks and 1 rank"),
            (|o| o.passed.requests += 1, "the cache's count"),
            (|o| o.accelerated.ways[0].epoch.order_digest = "1".into(), "without a cache, cold and warm"),
            (|o| o.accelerated.ways[2].epoch.s3_requests = 1, "the fast accelerator"),
        ];
        for (fault, claim) in faults {
            let failed = failed(fault);
            assert!(failed.len() == 1 && failed[0].starts_with(claim), "{claim}: {failed:?}");
        }
        assert_eq!(failed(|o| o.passed_reread.object_bytes = 5).len(), 1);
        assert_eq!(failed(|o| o.training.parameter_hashes.truncate(1)).len(), 1);
        assert_eq!(
            failed(|o| o.training.epochs.truncate(1)).len(),
            4,
            "a run without warm epochs proves nothing"
        );
    }
}
