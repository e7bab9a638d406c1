//! The price of the content digest: the share of its speed that a loader loses when it computes the digest.

use super::subject::{Subject, SubjectRead};
use crate::harness::check::Findings;
use crate::harness::report::Row;
use forebay_client::LoaderSettings;

/// The digest may be on by default if it costs no more.
pub const MOST_BY_DEFAULT: f64 = 0.03;

/// Adds the figures of a subject whose loaders compute the digest; `without` are those of the same rounds
/// whose loaders do not. The price has no target of its own: it decides whether the digest may be on by
/// default.
pub fn add(
    found: &mut Findings,
    subject: Subject,
    without: &[SubjectRead],
    verified: &[SubjectRead],
    scale: f64,
) {
    let Some(name) = subject.verified_name() else { return };
    let all = |of: fn(&SubjectRead) -> f64| verified.iter().map(of).collect::<Vec<_>>();
    let speeds = without.iter().zip(verified);
    let prices: Vec<f64> = speeds.map(|(without, with)| 1.0 - with.mb_per_s / without.mb_per_s).collect();
    let price = Row::of(format!("{name}_price"), "of its speed", &prices);
    let is_default = LoaderSettings::default().content_digest;
    let text = judged(&price, is_default);
    found.rows.extend([
        Row::of(format!("{name}.mb_per_s"), "MB/s", &all(|read| read.mb_per_s)),
        Row::of(format!("{name}.cpu_s_per_gb"), "s/GB", &all(SubjectRead::cpu_s_per_gb)),
    ]);
    let is_dear = price.value > MOST_BY_DEFAULT;
    found.rows.push(price);
    // Equal values have equal digests.
    let contents = verified.windows(2).all(|pair| pair[0].content == pair[1].content);
    found.check(contents, format!("{name}: the content digest of every round is the same"));
    if scale < 1.0 { found.leave_out(text) } else { found.check(!(is_dear && is_default), text) }
}

/// On which side of the bound a price is.
fn judged(price: &Row, is_default: bool) -> String {
    let Row { name, value, unit, .. } = price;
    let side = if *value > MOST_BY_DEFAULT { "above" } else { "not above" };
    let default = if is_default { "on" } else { "off" };
    format!("{name} = {value:.3} {unit}, {side} {MOST_BY_DEFAULT}: {default} by default")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::warm::{Shape, Transport};
    use forebay_client::loader::Shuffle;
    use forebay_proto::digest::ContentDigest;

    fn read(mb_per_s: f64, row: &[u8]) -> SubjectRead {
        let mut content = ContentDigest::default();
        content.add(row);
        SubjectRead {
            mb_per_s,
            rows_per_s: 1.0,
            node_cpu_s_per_gb: 0.25,
            client_cpu_s_per_gb: 0.5,
            first_batch_ms: 1.0,
            content: Some(content),
        }
    }

    #[test]
    fn a_price_is_of_the_same_round_and_says_on_which_side_it_is() {
        let subject = Subject { shape: Shape::X, shuffle: Shuffle::None, ranks: 1, transport: Transport::Fd };
        let without = [read(1000.0, b"a"), read(400.0, b"a"), read(200.0, b"a")];
        let verified = [read(500.0, b"a"), read(300.0, b"a"), read(200.0, b"a")];
        let mut found = Findings::default();
        add(&mut found, subject, &without, &verified, 1.0);
        let rows: Vec<_> = found.rows.iter().map(|row| (row.name.as_str(), row.value)).collect();
        assert_eq!(
            rows,
            [
                ("warm.fd.X.sequential.verify.mb_per_s", 300.0),
                ("warm.fd.X.sequential.verify.cpu_s_per_gb", 0.75),
                ("warm.fd.X.sequential.verify_price", 0.25),
            ]
        );
        assert_eq!(found.broken(), "");
        let text = "warm.fd.X.sequential.verify_price = 0.250 of its speed, above 0.03: off by default";
        assert_eq!(found.checks[1].claim, text);
        assert!(
            judged(&Row::of("x", "of its speed", &[0.02]), true).ends_with("not above 0.03: on by default")
        );
        let mut other = Findings::default();
        add(&mut other, subject, &without, &[verified[0], read(300.0, b"b")], 1.0);
        assert!(other.broken().contains("the content digest of every round"), "{}", other.broken());
    }
}
