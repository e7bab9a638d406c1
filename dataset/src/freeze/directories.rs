//! The columns that lie in the directories of a dataset's objects, or in the log of its table.

use super::objects::{Found, Listed};
use super::pattern::base;
use crate::delta::{TableFile, TableLog};
use crate::partitions::{infer, names, value};
use crate::selection::Selection;
use arrow::datatypes::Field;
use arrow::error::ArrowError;
use forebay_proto::{Error, Result};

/// Columns with one value for each object.
pub(super) struct Directories {
    pub names: Vec<String>,
    /// For each object the value of each column.
    pub values: Vec<Vec<Option<String>>>,
    /// The columns as a log has them; empty without one.
    types: Vec<Field>,
}

impl Directories {
    /// The names of all that there are, none if `selection` wants none. `Invalid` for one that does not
    /// decode.
    pub fn all(selection: &Selection, Found { objects, log, .. }: &Found) -> Result<Vec<String>> {
        if let Some(log) = log {
            return Ok(log.partitions.clone());
        }
        if selection.no_partitions {
            return Ok(Vec::new());
        }
        let below = |key| str::strip_prefix(key, base(&selection.uri)).unwrap_or(key);
        names(objects.iter().map(|(key, _)| below(key)))
    }

    /// Some of them.
    pub fn read(selection: &Selection, found: &Found, names: Vec<String>) -> Result<Self> {
        if let Some(log) = &found.log {
            return Self::logged(log, names);
        }
        let objects = &found.objects;
        let of = |(key, _): &Listed| {
            let uri = selection.object_uri(key);
            names.iter().map(|name| value(&uri, name)).collect()
        };
        let values = objects.iter().map(of).collect::<Result<_>>()?;
        Ok(Self { names, values, types: Vec::new() })
    }

    fn logged(log: &TableLog, names: Vec<String>) -> Result<Self> {
        let types = names.iter().map(|name| Ok(log.schema.field_with_name(name)?.clone()));
        let types = types.collect::<Result<Vec<_>, ArrowError>>();
        let types = types.map_err(|e| Error::invalid(format!("the table's partitions: {e}")))?;
        let place = |name: &String| log.partitions.iter().position(|partition| partition == name);
        let places: Vec<usize> = names.iter().filter_map(place).collect();
        let of = |file: &TableFile| {
            let values = places.iter().map(|place| file.object.values.get(*place)?.text.clone());
            values.collect()
        };
        Ok(Self { names, values: log.files.iter().map(of).collect(), types })
    }

    /// The columns, each of the type that holds all its values.
    pub fn fields(&self) -> impl Iterator<Item = Field> {
        self.names.iter().enumerate().map(|(i, name)| {
            if let Some(field) = self.types.get(i) {
                return field.clone().with_nullable(true);
            }
            let data_type = infer(self.values.iter().filter_map(|of| of[i].as_deref()));
            Field::new(name, data_type, true)
        })
    }
}
