//! The schema of a dataset whose objects have several, and what each object's columns become in it.

use super::directories::Directories;
use super::keys::Keys;
use super::objects::{Found, Listed};
use crate::delta::TableLog;
use crate::schema::to_ipc;
use crate::schema::union::{self, Conflict, Sighting};
use crate::selection::Selection;
use arrow::datatypes::Schema;
use forebay_proto::hash::Hash64;
use forebay_proto::manifest::Shape;
use forebay_proto::{Error, Result};
use std::sync::Arc;

/// The schemas of all objects.
#[derive(Default)]
pub(super) struct Schemas {
    /// All that there are, in order of first sight.
    pub distinct: Vec<Sighting>,
    /// Which of them each object has; none of one that was not opened, as a filter leaves no row of it.
    pub of: Vec<Option<usize>>,
    /// What they have beside their directories.
    pub keys: Keys,
}

/// The table that the objects are together.
pub(super) struct Table {
    pub schema: Schema,
    /// None where all objects have this schema.
    pub shape: Option<Shape>,
    pub conflicts: Vec<Conflict>,
    pub notes: Vec<String>,
}

/// Puts the schemas of `objects` together as `selection` says. `Invalid` if it names an object that is not
/// there, or directories that cannot be columns.
pub(super) fn table(selection: &Selection, found: &Found, schemas: &Schemas) -> Result<Table> {
    let (all, objects) = (&schemas.distinct, &found.objects);
    let mut union = match selection.schema_of.as_str() {
        "" => union::all(all),
        name => {
            let own = schemas.of[position(selection, objects, name)?].unwrap_or_default();
            let mut union = union::like(&all[own], all);
            union
                .advise("leave it out with --columns, read a sub-prefix, or write the objects with one type");
            union
        }
    };
    schemas.keys.judge(&mut union);
    let mut notes = Vec::new();
    let mut partitions = Directories::all(selection, found)?;
    partitions.retain(|name| schemas.keys.owner(name).is_none());
    let directories = Directories::read(selection, found, partitions)?;
    let mut fields = union.fields;
    fields.extend(directories.fields().map(Arc::new));
    let Directories { names: partitions, values, .. } = directories;
    let schema = Schema::new(fields);
    let first = |name: &str| first_with(all, name).unwrap_or("its directories");
    for (a, b) in union::differing_in_case(&schema) {
        notes.push(format!(
            "{}: columns '{a}' and '{b}' differ in case only: both are kept, '{a}' as in {}, '{b}' as in {}; name the \
             ones you want with --columns, or write the objects with one name",
            selection.uri,
            first(a),
            first(b)
        ));
    }
    let is_plain = union.conflicts.is_empty() && partitions.is_empty();
    let shape = match is_plain && all.iter().all(|own| union::is_plain(&schema, &own.schema)) {
        true => None,
        false => {
            let forms = forms(&schema, schemas, &partitions, &values, None)?;
            Some(Shape { forms, partitions, table: None })
        }
    };
    Ok(Table { schema, shape, conflicts: union.conflicts, notes })
}

/// Which object is meant.
fn position(selection: &Selection, objects: &[Listed], name: &str) -> Result<usize> {
    let uri = selection.object_uri(name);
    objects.iter().position(|(key, object)| key == name || object.place.uri == uri).ok_or_else(|| {
        let one = objects.first().map_or("", |(key, _)| key);
        Error::invalid(format!(
            "{}: no object '{name}' to take the schema of: there is '{one}'",
            selection.uri
        ))
    })
}

/// The first object that has a column.
fn first_with<'a>(all: &'a [Sighting], name: &str) -> Option<&'a str> {
    let first = all.iter().find(|own| own.schema.column_with_name(name).is_some());
    first.map(|own| own.object.as_str())
}

/// For each object a hash of what its columns become: those of another type, its partitions, and what the
/// log of a table says of it.
pub(super) fn forms(
    schema: &Schema,
    schemas: &Schemas,
    partitions: &[String],
    values: &[Vec<Option<String>>],
    log: Option<&TableLog>,
) -> Result<Vec<u64>> {
    let adapted = |sighting: &Sighting| match union::adapted(schema, &sighting.own) {
        fields if fields.is_empty() => Ok(Vec::new()),
        fields => to_ipc(&Schema::new(fields)),
    };
    let adapted = schemas.distinct.iter().map(adapted).collect::<Result<Vec<_>>>()?;
    let types = partitions.iter().map(|name| Ok(schema.field_with_name(name)?.clone()));
    let types = types.collect::<Result<Vec<_>, arrow::error::ArrowError>>();
    let types = to_ipc(&Schema::new(types.map_err(|e| Error::invalid(e.to_string()))?))?;
    let renamed = log.map(|log| log.renamed.as_slice()).unwrap_or_default();
    let form = |(object, (own, values)): (usize, (&Option<usize>, &Vec<Option<String>>))| {
        let mut h = Hash64::default();
        let Some(own) = own else { return 0 };
        let deleted = log.and_then(|log| log.files.get(object)).map(|file| file.object.deleted.as_slice());
        let deleted = deleted.unwrap_or_default();
        if adapted[*own].is_empty() && values.is_empty() && renamed.is_empty() && deleted.is_empty() {
            return 0;
        }
        let mut put = |bytes: &[u8]| {
            h.update(&(bytes.len() as u64).to_le_bytes());
            h.update(bytes);
        };
        put(&adapted[*own]);
        put(&types);
        for value in values {
            put(&[u8::from(value.is_some())]);
            put(value.as_deref().unwrap_or_default().as_bytes());
        }
        for renamed in renamed {
            put(renamed.column.as_bytes());
            put(renamed.source.as_bytes());
        }
        deleted.iter().for_each(|n| put(&n.to_le_bytes()));
        // 0 is for columns as they are.
        h.digest().max(1)
    };
    Ok(schemas.of.iter().zip(values).enumerate().map(form).collect())
}
