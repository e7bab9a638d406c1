//! A dataset that a node knows.

use arrow::datatypes::SchemaRef;
use forebay_dataset::source;
use forebay_proto::Manifest;
use forebay_proto::manifest::{Segment, SegmentId};
use std::sync::Arc;

/// A frozen dataset with its decoded schema.
#[derive(Debug, Clone)]
pub struct Dataset {
    pub manifest: Arc<Manifest>,
    /// All columns, whichever are read.
    pub schema: SchemaRef,
}

impl Dataset {
    /// Whether it reads anything under a URI.
    pub fn is_of(&self, uri: &str) -> bool {
        self.manifest.parts().iter().any(|p| source::is_under(&p.uri, uri))
    }

    /// What its segments are held under, in file order.
    pub fn segment_ids(&self) -> impl Iterator<Item = SegmentId> {
        (0..self.manifest.segments().len() as u32)
            .filter_map(|segment| self.manifest.segment_id(segment).ok())
    }

    /// The predicate of its filter; empty where it has all rows.
    pub fn filter(&self) -> &str {
        self.manifest.filter().map_or("", |filter| filter.predicate())
    }

    /// The rows that a split has of one of `all`, as from:to; empty where there is no split. Of a filtered
    /// dataset it is not known which one is whole.
    pub fn part(&self, all: &[Self]) -> String {
        let m = &self.manifest;
        let larger = |other: &&Self| {
            let o = &other.manifest;
            o.uri() == m.uri()
                && o.rows() > m.rows()
                && o.has_objects_of(m)
                && o.is_whole()
                && o.filter().is_none()
        };
        let Some(first) = m.segments().first().filter(|_| m.filter().is_none()) else {
            return String::new();
        };
        let place = |s: &Segment| (s.object, s.first_row_group);
        let whole = all.iter().filter(larger).max_by_key(|other| other.manifest.rows()).and_then(|whole| {
            let segments = whole.manifest.segments();
            segments.binary_search_by_key(&place(first), place).ok().map(|at| &segments[at])
        });
        match whole {
            Some(segment) => {
                let from = segment.first_row + first.skip;
                format!("{from}:{}", from + m.rows())
            }
            None if m.is_whole() => String::new(),
            None => "?".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Schema;
    use forebay_proto::manifest::{Object, SegmentSize};
    use forebay_proto::view::Split;

    #[test]
    fn a_split_says_which_rows_it_has() {
        let object = |key: &str| Object { key: key.into(), etag: "e".into(), size: 1, ..Default::default() };
        let size = |object| SegmentSize { object, row_groups: 1, rows: 10, decoded_bytes: 80 };
        let objects = vec![object("a"), object("b")];
        let whole = Manifest::new("s3://b/d", 1, vec![], objects, &[size(0), size(0), size(1)]).unwrap();
        let dataset = |m: Manifest| Dataset { manifest: Arc::new(m), schema: Arc::new(Schema::empty()) };
        let split = |text: &str| dataset(whole.split(&text.parse::<Split>().unwrap()).unwrap());
        let all = [split("0:15"), split("15:30"), dataset(whole.clone())];
        assert_eq!([0, 1, 2].map(|i| all[i].part(&all)), ["0:15", "15:30", ""]);
        assert_eq!(split("20:30").part(&all), "20:30", "whole objects");
        assert_eq!(all[1].part(&all[..1]), "?");
    }
}
