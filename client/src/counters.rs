//! Arithmetic on the counters of whoever reads the store: what a stretch of reading cost is a difference of two.

use forebay_proto::v1::Counters;

macro_rules! each {
    ($($field:ident),* $(,)?) => {
        /// What was added between two readings. A counter that went back (the node was restarted) counts from 0.
        pub fn since(before: &Counters, after: &Counters) -> Counters {
            Counters {
                $($field: match after.$field >= before.$field {
                    true => after.$field - before.$field,
                    false => after.$field,
                }),*
            }
        }

        /// Both together.
        pub fn sum(a: &Counters, b: &Counters) -> Counters {
            Counters { $($field: a.$field + b.$field),* }
        }

        /// Every counter by its name in the protocol.
        pub fn named(c: &Counters) -> Vec<(&'static str, u64)> {
            vec![$((stringify!($field), c.$field)),*]
        }
    };
}

each! {
    s3_requests,
    s3_bytes,
    s3_footer_requests,
    s3_footer_bytes,
    s3_retries,
    parquet_bytes_decoded,
    arrow_bytes_decoded,
    hits,
    joins,
    misses,
    evictions,
    corrupt_segments,
    store_bytes_written,
    rows_served,
    bytes_served,
    streams,
    prefetched,
    bypassed,
    plans_announced,
    peer_fills,
    peer_bytes,
    peer_bytes_served,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences() {
        let before = Counters { s3_bytes: 10, hits: 5, ..Default::default() };
        let after = Counters { s3_bytes: 25, hits: 3, ..Default::default() };
        let d = since(&before, &after);
        assert_eq!((d.s3_bytes, d.hits, d.misses), (15, 3, 0));
        assert!(named(&d).contains(&("s3_bytes", 15)));
    }
}
