//! Views: a split of a dataset, a mix of several. Both are manifests, so everything that reads a dataset
//! reads them, and their segments are those of the datasets behind them: nothing is cached twice.

use crate::error::{Error, Result};
use crate::manifest::{BLOCK_MAX, Filter, Manifest, Object, Part, Segment, Shape};
use crate::v1::split::{Rows, Shares};
use crate::v1::{self, Table, TableObject};
use std::fmt;

pub use crate::v1::MixPart;
pub use crate::v1::split::By as Split;

/// Datasets that a mix may have.
pub const PARTS_MAX: usize = 100;

impl Split {
    /// The rows of a dataset of `rows` rows; `Invalid` if the split does not fit it.
    pub fn of(&self, rows: u64) -> Result<std::ops::Range<u64>> {
        let (from, to) = match *self {
            Split::Rows(Rows { from, to }) => (from, to),
            Split::Shares(Shares { from, to }) => {
                if !(0.0..=1.0).contains(&from) || !(0.0..=1.0).contains(&to) {
                    return Err(Error::invalid(format!("split {self}: shares are 0 to 1")));
                }
                let row = |share: f64| if share == 1.0 { rows } else { (share * rows as f64).floor() as u64 };
                (row(from), row(to))
            }
        };
        if from > to || to > rows {
            return Err(Error::invalid(format!("split {self} does not fit {rows} rows")));
        }
        Ok(from..to)
    }
}

impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Split::Rows(Rows { from, to }) => write!(f, "{from}:{to}"),
            Split::Shares(Shares { from, to }) => {
                // With a point in any case, and without an exponent.
                let digits = |share: &f64| if share.fract() == 0.0 { 1 } else { share.to_string().len() - 2 };
                write!(f, "{from:.0$}:{to:.1$}", digits(from), digits(to))
            }
        }
    }
}

impl std::str::FromStr for Split {
    type Err = Error;

    /// `0:0.9` or `0%:90%` by shares, `1000:5000` by rows. A split is by shares if one of its numbers has a
    /// `.` or a `%`, so `0:1` is the first row and `0:1.0` all rows.
    fn from_str(s: &str) -> Result<Self> {
        let bad = || {
            Error::invalid(format!(
                "split `{s}` is none: use shares as in 0.0:0.9 or 0%:90%, or rows as in 1000:5000"
            ))
        };
        let (from, to) = s.split_once(':').ok_or_else(bad)?;
        if !s.contains(['.', '%']) {
            let (from, to) = (from.parse().map_err(|_| bad())?, to.parse().map_err(|_| bad())?);
            return if from <= to { Ok(Split::Rows(Rows { from, to })) } else { Err(bad()) };
        }
        let (from, to) = (share(from).ok_or_else(bad)?, share(to).ok_or_else(bad)?);
        if from <= to { Ok(Split::Shares(Shares { from, to })) } else { Err(bad()) }
    }
}

/// A share of all rows, as `0.25` or `25%`.
fn share(text: &str) -> Option<f64> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    (0.0..=1.0).contains(&share).then_some(share)
}

impl std::str::FromStr for MixPart {
    type Err = Error;

    /// `URI=SHARE`, as in `s3://bucket/a=0.7`.
    fn from_str(s: &str) -> Result<Self> {
        let parsed = s.rsplit_once('=').and_then(|(uri, share)| Some((uri, share.parse::<f64>().ok()?)));
        match parsed {
            Some((uri, share)) if !uri.is_empty() && share > 0.0 && share.is_finite() => {
                Ok(Self { uri: uri.to_owned(), share, split: None })
            }
            _ => Err(Error::invalid(format!(
                "`{s}` is no part of a mix: use URI=SHARE, as in s3://bucket/a=0.7"
            ))),
        }
    }
}

impl Manifest {
    /// Only the rows of a split.
    pub fn split(&self, split: &Split) -> Result<Manifest> {
        let rows = split.of(self.rows()).map_err(|e| e.context(self.uri()))?;
        if self.parts().len() > 1 {
            return Err(Error::invalid(format!("{}: split the datasets of a mix, not the mix", self.uri())));
        }
        // Empty where the split has none of a segment's rows: also where it is empty itself and lies within.
        let own = |s: &Segment| s.first_row.max(rows.start)..(s.first_row + s.rows).min(rows.end);
        let cut = |s: &Segment| {
            let own = own(s);
            (!own.is_empty()).then(|| Segment {
                skip: s.skip + own.start - s.first_row,
                rows: own.end - own.start,
                ..*s
            })
        };
        let segments = self.segments().iter().filter_map(cut).collect();
        let filter = self.filter().map(|filter| {
            let kept = (0u32..).zip(self.segments()).filter(|(_, s)| !own(s).is_empty());
            filter.with_rows(kept.flat_map(|(i, _)| filter.rows_of(i)).copied().collect())
        });
        let (schema, objects) = (self.schema().to_vec(), self.objects().to_vec());
        let (uri, more) = (self.uri().to_owned(), (self.shape().cloned(), filter));
        Manifest::build(uri, self.segment_bytes(), schema, objects, segments, Vec::new(), more)
    }

    /// Several datasets in proportion to their shares. They must have one schema: `Invalid` names the one
    /// that differs.
    pub fn mix(parts: &[(Manifest, f64)]) -> Result<Manifest> {
        let Some((first, _)) = parts.first() else {
            return Err(Error::invalid("a mix needs at least one dataset"));
        };
        let slots = slots(&parts.iter().map(|(_, share)| *share).collect::<Vec<_>>())?;
        let (mut objects, mut segments, mut own) = (Vec::new(), Vec::new(), Vec::new());
        for ((m, _), slots) in parts.iter().zip(slots) {
            if m.schema() != first.schema() {
                return Err(Error::invalid(format!(
                    "{} and {} cannot be mixed: their schemas differ",
                    first.uri(),
                    m.uri()
                )));
            }
            let (object, segment) = (objects.len() as u32, segments.len() as u32);
            objects.extend(m.objects().iter().map(|o| Object { key: m.object_uri(o), ..o.clone() }));
            segments.extend(m.segments().iter().map(|s| Segment { object: s.object + object, ..*s }));
            let range = segment..segments.len() as u32;
            own.push(Part { uri: m.uri().to_owned(), segments: range, rows: 0, slots });
        }
        let named: Vec<String> = own.iter().map(|p| format!("{}={}", p.uri, p.slots)).collect();
        let uri = format!("mix({})", named.join(","));
        let (schema, more) = (first.schema().to_vec(), (mixed_shape(parts)?, mixed_filter(parts)?));
        Manifest::build(uri, first.segment_bytes(), schema, objects, segments, own, more)
    }
}

/// The shape of a mix, if any of its parts has one.
fn mixed_shape(parts: &[(Manifest, f64)]) -> Result<Option<Shape>> {
    if parts.iter().all(|(m, _)| m.shape().is_none()) {
        return Ok(None);
    }
    let partitions = |m: &Manifest| m.shape().map(|shape| shape.partitions.clone()).unwrap_or_default();
    let table = mixed_table(parts)?;
    let mut mixed = Shape { partitions: partitions(&parts[0].0), forms: Vec::new(), table };
    for (m, _) in parts {
        if partitions(m) != mixed.partitions {
            return Err(Error::invalid(format!(
                "{} and {} cannot be mixed: a column of one is a directory (NAME=VALUE) of the other: use --no-partitions",
                parts[0].0.uri(),
                m.uri()
            )));
        }
        match m.shape() {
            Some(shape) => mixed.forms.extend(&shape.forms),
            None => mixed.forms.resize(mixed.forms.len() + m.objects().len(), 0),
        }
    }
    Ok(Some(mixed))
}

/// The table of a mix, if any of its parts has one: they must have the same names for the same columns.
fn mixed_table(parts: &[(Manifest, f64)]) -> Result<Option<Table>> {
    let of = |m: &Manifest| m.shape().and_then(|shape| shape.table.clone());
    if parts.iter().all(|(m, _)| of(m).is_none()) {
        return Ok(None);
    }
    let renamed = |m: &Manifest| of(m).unwrap_or_default().renamed;
    let first = &parts[0].0;
    let mut mixed = Table { renamed: renamed(first), ..Table::default() };
    for (m, _) in parts {
        if renamed(m) != mixed.renamed {
            return Err(Error::invalid(format!(
                "{} and {} cannot be mixed: one is a Delta table whose columns have other names in its objects",
                first.uri(),
                m.uri()
            )));
        }
        let end = mixed.objects.len() + m.objects().len();
        mixed.objects.extend(of(m).unwrap_or_default().objects);
        mixed.objects.resize_with(end, TableObject::default);
    }
    Ok(Some(mixed))
}

/// The filter of a mix, which is that of all its parts.
fn mixed_filter(parts: &[(Manifest, f64)]) -> Result<Option<v1::Filter>> {
    let predicate = |m: &Manifest| m.filter().map(Filter::predicate).map(str::to_owned);
    let first = &parts[0].0;
    if let Some((other, _)) = parts.iter().find(|(m, _)| predicate(m) != predicate(first)) {
        let (a, b) = (first.uri(), other.uri());
        return Err(Error::invalid(format!("{a} and {b} cannot be mixed: their filters differ")));
    }
    let rows = || parts.iter().filter_map(|(m, _)| m.filter()).flat_map(Filter::rows).copied().collect();
    Ok(first.filter().map(|filter| filter.with_rows(rows())))
}

/// Shares as whole slots of the smallest block that fits them: 0.7 and 0.3 are 7 and 3. If none up to
/// [`BLOCK_MAX`] does (to a millionth), of a block of that size, rounded to the largest remainders; every
/// part gets at least one.
fn slots(shares: &[f64]) -> Result<Vec<u32>> {
    let total: f64 = shares.iter().sum();
    if shares.len() > PARTS_MAX || shares.iter().any(|s| !(*s > 0.0 && s.is_finite())) || !total.is_finite() {
        return Err(Error::invalid("the shares of a mix are numbers above 0, of at most 100 datasets"));
    }
    let at = |block: u32| shares.iter().map(move |s| s / total * f64::from(block));
    let even = |block: &u32| at(*block).all(|e| e > 0.5 && (e - e.round()).abs() < 1e-6);
    if let Some(block) = (1..=BLOCK_MAX).find(even) {
        return Ok(at(block).map(|e| e.round() as u32).collect());
    }
    let exact: Vec<f64> = shares.iter().map(|s| s / total * f64::from(BLOCK_MAX)).collect();
    let mut slots: Vec<u32> = exact.iter().map(|e| (e.floor() as u32).max(1)).collect();
    let mut by_rest: Vec<usize> = (0..shares.len()).collect();
    by_rest.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    let missing = BLOCK_MAX.saturating_sub(slots.iter().sum());
    by_rest.iter().cycle().take(missing as usize).for_each(|&i| slots[i] += 1);
    Ok(slots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::SegmentSize;
    use crate::plan::{Order, Shuffle};

    fn rows(from: u64, to: u64) -> Split {
        Split::Rows(Rows { from, to })
    }

    fn shares(from: f64, to: f64) -> Split {
        Split::Shares(Shares { from, to })
    }

    fn dataset(uri: &str, rows: &[u64]) -> Manifest {
        let size = |&rows| SegmentSize { object: 0, row_groups: 2, rows, decoded_bytes: rows * 8 };
        let object = Object { key: "o".into(), etag: uri.into(), size: 9, ..Default::default() };
        Manifest::new(uri, 1, vec![1], vec![object], &rows.iter().map(size).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn splits_are_disjoint_and_complete() {
        let whole = dataset("s3://b/a", &[10, 7, 20]);
        let (train, test) = (shares(0.0, 0.4), shares(0.4, 1.0));
        let (a, b) = (whole.split(&train).unwrap(), whole.split(&test).unwrap());
        assert_eq!((a.rows(), b.rows()), (14, 23));
        let places = |m: &Manifest| {
            m.segments().iter().map(|s| (s.first_row_group, s.skip, s.rows)).collect::<Vec<_>>()
        };
        assert_eq!(places(&a), [(0, 0, 10), (2, 0, 4)]);
        assert_eq!(places(&b), [(2, 4, 3), (4, 0, 20)]);
        assert_ne!(a.digest(), b.digest());
        // The cached segments are the dataset's own.
        assert_eq!(b.segment_id(0).unwrap(), whole.segment_id(1).unwrap());
        for m in [&a, &b] {
            assert_eq!(&Manifest::try_from(v1::Manifest::from(m)).unwrap(), m);
        }
        assert_eq!(whole.split(&rows(0, 37)).unwrap().digest(), whole.digest());
        assert!(whole.split(&rows(5, 38)).is_err());
        assert_eq!(whole.split(&rows(5, 5)).unwrap().rows(), 0);
    }

    #[test]
    fn mixes_keep_their_parts_apart() {
        let (a, b) = (dataset("s3://b/a", &[10, 7]), dataset("s3://b/c", &[20]));
        let m = Manifest::mix(&[(a.clone(), 0.7), (b.clone(), 0.3)]).unwrap();
        assert_eq!(m.uri(), "mix(s3://b/a=7,s3://b/c=3)");
        assert_eq!(
            m.parts().iter().map(|p| (p.segments.clone(), p.rows)).collect::<Vec<_>>(),
            [(0..2, 17), (2..3, 20)]
        );
        assert_eq!(m.segment_id(2).unwrap(), b.segment_id(0).unwrap());
        assert_eq!(Manifest::try_from(v1::Manifest::from(&m)).unwrap(), m);
        let other = Manifest::mix(&[(a.clone(), 0.6), (b, 0.4)]).unwrap();
        assert_ne!(m.digest(), other.digest());
        assert!(Manifest::mix(&[]).is_err());
        for epoch in [u64::MAX, u64::MAX / 7] {
            let order = Order::new(&m, 1, epoch, Shuffle::Full);
            assert!((0..order.len()).all(|position| order.at(position).is_some()));
        }
        assert!(Manifest::mix(&[(a.clone(), 0.0)]).is_err());
        let nothing = a.split(&rows(3, 3)).unwrap();
        assert!(Manifest::mix(&[(a, 1.0), (nothing, 1.0)]).unwrap_err().message.contains("no rows"));
    }

    #[test]
    fn shares_become_slots() {
        assert_eq!(slots(&[0.7, 0.3]).unwrap(), [7, 3]);
        assert_eq!(slots(&[1.0, 1.0, 1.0]).unwrap(), [1, 1, 1]);
        assert_eq!(slots(&[std::f64::consts::PI, 1.0, 1.0]).unwrap(), [611, 195, 194]);
        assert_eq!(slots(&[1e-9, 1.0]).unwrap().iter().min(), Some(&1));
        assert_eq!(slots(&[5.0]).unwrap(), [1]);
        assert!(slots(&[f64::NAN, 1.0]).is_err() && slots(&[-1.0]).is_err());
    }

    #[test]
    fn splits_are_read() {
        assert_eq!("0:0.9".parse::<Split>().unwrap(), shares(0.0, 0.9));
        assert_eq!("0:1".parse::<Split>().unwrap(), rows(0, 1));
        assert_eq!("0:1.0".parse::<Split>().unwrap(), shares(0.0, 1.0));
        assert_eq!("90%:100%".parse::<Split>().unwrap(), shares(0.9, 1.0));
        assert_eq!("10:500".parse::<Split>().unwrap(), rows(10, 500));
        for bad in ["", "5", "0.5:0.1", "a:b", "0:1.5", "-1:1", "2:1", "0:101%"] {
            assert!(bad.parse::<Split>().is_err(), "{bad}");
        }
    }

    #[test]
    fn splits_are_read_as_they_are_printed() {
        let splits = [rows(0, 0), rows(0, 1), rows(7, 1 << 40), shares(0.0, 1.0), shares(1e-9, 2.5e-7)];
        for split in splits {
            assert_eq!(split.to_string().parse::<Split>().unwrap(), split);
        }
    }
}
