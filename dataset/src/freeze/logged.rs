//! The schema of a Delta table, into which its objects must fit.

use super::directories::Directories;
use super::objects::Found;
use super::shape::{Schemas, Table, forms};
use crate::delta::TableLog;
use crate::schema::union::{self, Sighting};
use crate::selection::Selection;
use arrow::datatypes::Schema;
use forebay_proto::Result;
use forebay_proto::manifest::Shape;
use forebay_proto::v1;
use std::sync::Arc;

/// The table as its log has it. A column whose type in an object has nothing in common with the log's is in
/// conflict.
pub(super) fn table(
    selection: &Selection,
    found: &Found,
    (log, schemas): (&TableLog, &Schemas),
) -> Result<Table> {
    let is_partition = |name: &String| log.partitions.contains(name);
    let own = log.schema.fields().iter().filter(|field| !is_partition(field.name())).cloned();
    let schema = Arc::new(Schema::new(own.collect::<Vec<_>>()));
    let object = format!("the log of {}", selection.uri);
    let chosen = Sighting { own: schema.clone(), schema, object };
    let mut union = union::like(&chosen, &schemas.distinct);
    let is_unreadable = |name: &str| log.unreadable.iter().any(|column| column.column == name);
    union.fields.retain(|field| !is_unreadable(field.name()));
    union.conflicts.retain(|conflict| !is_unreadable(&conflict.column));
    // What decides is the log.
    union.advise("leave it out with --columns, or write the rows to another table");
    union.conflicts.extend(log.unreadable.iter().cloned());
    let directories = Directories::read(selection, found, log.partitions.clone())?;
    let values: Vec<_> = directories.fields().map(Arc::new).chain(union.fields).collect();
    // In the log's order.
    let place = |name: &String| log.schema.fields().iter().position(|field| field.name() == name);
    let mut fields = values;
    fields.sort_by_key(|field| place(field.name()));
    let schema = Schema::new(fields);
    let partitions = directories.names;
    let forms = forms(&schema, schemas, &partitions, &directories.values, Some(log))?;
    let table = v1::Table {
        version: log.version.number,
        id: log.version.id.clone(),
        renamed: log.renamed.clone(),
        objects: log.files.iter().map(|file| file.object.clone()).collect(),
    };
    let shape = Some(Shape { forms, partitions, table: Some(table) });
    Ok(Table { schema, shape, conflicts: union.conflicts, notes: Vec::new() })
}
