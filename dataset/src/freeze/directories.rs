//! The columns that lie in the directories of a dataset's objects.

use super::objects::Listed;
use super::pattern::base;
use crate::partitions::{infer, names, value};
use crate::selection::Selection;
use arrow::datatypes::Field;
use forebay_proto::Result;

/// Columns with one value for each object.
pub(super) struct Directories {
    pub names: Vec<String>,
    /// For each object the value of each column.
    pub values: Vec<Vec<Option<String>>>,
}

impl Directories {
    /// The names of all that there are, none if `selection` wants none. `Invalid` for one that does not
    /// decode.
    pub fn all(selection: &Selection, objects: &[Listed]) -> Result<Vec<String>> {
        if selection.no_partitions {
            return Ok(Vec::new());
        }
        let below = |key| str::strip_prefix(key, base(&selection.uri)).unwrap_or(key);
        names(objects.iter().map(|(key, _)| below(key)))
    }

    /// Some of them.
    pub fn read(selection: &Selection, objects: &[Listed], names: Vec<String>) -> Result<Self> {
        let of = |(key, _): &Listed| {
            let uri = selection.object_uri(key);
            names.iter().map(|name| value(&uri, name)).collect()
        };
        let values = objects.iter().map(of).collect::<Result<_>>()?;
        Ok(Self { names, values })
    }

    /// The columns, each of the type that holds all its values.
    pub fn fields(&self) -> impl Iterator<Item = Field> {
        self.names.iter().enumerate().map(|(i, name)| {
            let data_type = infer(self.values.iter().filter_map(|of| of[i].as_deref()));
            Field::new(name, data_type, true)
        })
    }
}
