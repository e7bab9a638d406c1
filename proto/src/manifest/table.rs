//! Delta tables: what a table's log says about the objects of a manifest.
//!
//! The columns that have other names in the objects, the values of partitions, and the rows that are deleted
//! though the objects hold them. Part of the manifest's digest, but for the table's version.

use crate::hash::Hash128;
use crate::v1::{Object, PartitionValue, Shape, Table, TableObject};
use std::ops::Range;

/// What the URI of a Delta table begins with.
pub const DELTA: &str = "delta+";

/// Runs of deleted rows that a manifest may have: 16 bytes each.
pub const DELETED_RUNS_MAX: usize = 4 << 20;

impl Shape {
    /// The name that objects have for a column.
    pub fn source_of<'a>(&'a self, column: &'a str) -> &'a str {
        let renamed = self.table.iter().flat_map(|table| &table.renamed);
        renamed.into_iter().find(|r| r.column == column).map_or(column, |r| &r.source)
    }

    /// The value that the log of a table gives a partition for an object: none if there is no log, or if it
    /// leaves that to directories.
    pub fn value_of(&self, object: usize, partition: &str) -> Option<&PartitionValue> {
        let values = &self.table.as_ref()?.objects.get(object)?.values;
        values.get(self.partitions.iter().position(|name| name == partition)?)
    }

    /// The rows among `rows` of an object that its table deleted, in ascending order.
    pub fn deleted_of(&self, object: usize, rows: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let object = self.table.as_ref().and_then(|table| table.objects.get(object));
        let runs = object.map(TableObject::deleted_runs).into_iter().flatten();
        let end = rows.end;
        let inside = move |run: Range<u64>| run.start.max(rows.start)..run.end.min(rows.end);
        runs.take_while(move |run| run.start < end).map(inside).filter(|run| !run.is_empty())
    }

    /// Whether some rows of objects are deleted.
    pub fn has_deleted(&self) -> bool {
        self.table.as_ref().is_some_and(|table| table.objects.iter().any(|o| !o.deleted.is_empty()))
    }
}

impl TableObject {
    /// The deleted rows. Runs that are no runs, or lie beyond 2^64, end it.
    fn deleted_runs(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let (runs, _) = self.deleted.as_chunks::<2>();
        let next = |end: &mut u64, &[gap, rows]: &[u64; 2]| {
            let start = end.checked_add(gap)?;
            *end = start.checked_add(rows)?;
            Some(start..*end)
        };
        runs.iter().scan(0, next)
    }

    /// Rows in ascending order as [`TableObject::deleted`] has them; none if they are not.
    pub fn runs_of(rows: impl IntoIterator<Item = u64>) -> Option<Vec<u64>> {
        let (mut runs, mut end) = (Vec::<u64>::new(), 0u64);
        for row in rows {
            let gap = row.checked_sub(end)?;
            match runs.last_mut().filter(|_| gap == 0) {
                Some(run) => *run += 1,
                None => runs.extend([gap, 1]),
            }
            end = row.checked_add(1)?;
        }
        Some(runs)
    }
}

/// Why a table cannot be that of the objects.
pub(super) fn check(shape: &Shape, objects: &[Object]) -> Result<(), String> {
    let Some(table) = &shape.table else { return Ok(()) };
    if table.objects.len() != objects.len() {
        return Err("a ragged table".into());
    }
    let mut runs = 0;
    for object in &table.objects {
        if !object.values.is_empty() && object.values.len() != shape.partitions.len() {
            return Err("ragged partitions".into());
        }
        runs += object.deleted.len() / 2;
        if object.deleted.len() % 2 != 0 || object.deleted_runs().count() != object.deleted.len() / 2 {
            return Err("ragged runs of deleted rows".into());
        }
    }
    match runs <= DELETED_RUNS_MAX {
        true => Ok(()),
        false => Err(format!("{runs} runs of deleted rows, more than {DELETED_RUNS_MAX}")),
    }
}

/// Hashes all but the version and the id.
pub(super) fn hash(h: &mut Hash128, table: &Table) {
    let text = |h: &mut Hash128, text: &str| {
        h.update(&(text.len() as u64).to_le_bytes());
        h.update(text.as_bytes());
    };
    h.update(&(table.renamed.len() as u64).to_le_bytes());
    for renamed in &table.renamed {
        text(h, &renamed.column);
        text(h, &renamed.source);
    }
    for object in &table.objects {
        h.update(&(object.values.len() as u64).to_le_bytes());
        for value in &object.values {
            h.update(&[u8::from(value.text.is_some())]);
            text(h, value.text.as_deref().unwrap_or_default());
        }
        h.update(&(object.deleted.len() as u64).to_le_bytes());
        object.deleted.iter().for_each(|n| h.update(&n.to_le_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::{Manifest, SegmentSize};
    use crate::v1::{self, RenamedColumn};

    fn shape(deleted: Vec<u64>, version: u64) -> Shape {
        let values = vec![PartitionValue { text: Some("ch".into()) }];
        let objects = vec![TableObject { values, deleted }];
        let renamed = vec![RenamedColumn { column: "a".into(), source: "b".into() }];
        let table = Some(Table { version, renamed, objects, id: "t".into() });
        Shape { partitions: vec!["country".into()], forms: vec![1], table }
    }

    fn manifest(shape: Shape) -> crate::Result<Manifest> {
        let object = Object { key: "o".into(), etag: "e".into(), size: 9, ..Default::default() };
        let size = SegmentSize { object: 0, row_groups: 1, rows: 9, decoded_bytes: 72 };
        Manifest::new("s3://b/t", 1, vec![1], vec![object], &[size])?.shaped(Some(shape))
    }

    #[test]
    fn deleted_rows_are_runs() {
        let runs = TableObject::runs_of([0, 1, 5, 7, 8, 9]).unwrap();
        assert_eq!(runs, [0, 2, 3, 1, 1, 3]);
        let shape = shape(runs, 1);
        let of = |rows| shape.deleted_of(0, rows).collect::<Vec<_>>();
        assert_eq!(of(0..100), [0..2, 5..6, 7..10]);
        assert_eq!(of(1..8), [1..2, 5..6, 7..8]);
        assert!(of(2..5).is_empty() && shape.deleted_of(1, 0..9).next().is_none());
        assert!(TableObject::runs_of([3, 3]).is_none() && TableObject::runs_of([3, 2]).is_none());
    }

    #[test]
    fn columns_have_one_source() {
        let shape = shape(vec![], 1);
        assert_eq!((shape.source_of("a"), shape.source_of("c")), ("b", "c"));
        assert_eq!(shape.value_of(0, "country").unwrap().text.as_deref(), Some("ch"));
        assert!(shape.value_of(0, "year").is_none() && shape.value_of(1, "country").is_none());
    }

    #[test]
    fn a_table_is_part_of_the_digest_and_its_version_is_not() {
        let digest = |deleted: &[u64], version| manifest(shape(deleted.to_vec(), version)).unwrap().digest();
        assert_eq!(digest(&[1, 2], 3), digest(&[1, 2], 4));
        assert_ne!(digest(&[1, 2], 3), digest(&[1, 3], 3));
        let m = manifest(shape(vec![1, 2], 3)).unwrap();
        assert_eq!(m.version_uri(), "delta+s3://b/t@3");
        let wire = v1::Manifest::from(&m);
        assert_eq!((wire.format, Manifest::try_from(wire).unwrap()), (4, m));
        for bad in [vec![1], vec![1, 2, u64::MAX, 1]] {
            assert!(manifest(shape(bad, 1)).is_err());
        }
        let ragged = Shape { partitions: vec!["a".into(), "b".into()], ..shape(vec![], 1) };
        assert!(manifest(ragged).is_err());
    }
}
