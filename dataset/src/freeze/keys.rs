//! Partition keys that are also columns of the objects.
//!
//! The objects' own columns are read, so each must say what the object's directory says. Footers tell: all
//! row groups have that value as their least and their greatest, and no null.

use super::directories::Directories;
use super::objects::Found;
use crate::filter::{Facts, Nulls};
use crate::parquet::column_origin::ColumnOrigin;
use crate::parquet::footer::Footer;
use crate::parquet::statistics;
use crate::partitions::{constant, directory};
use crate::schema::union::{Conflict, Union};
use crate::selection::Selection;
use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, Field};
use arrow::util::display::array_value_to_string;
use forebay_proto::Result;

/// What to do about a column and directories that say different things.
const REMEDY: &str = "read the objects' own columns with --no-partitions, leave the column out with --columns, or write the objects without it";

/// The keys of a dataset's directories, and what its objects have as columns of these names.
#[derive(Default)]
pub(super) struct Keys {
    keys: Vec<Key>,
}

#[derive(Default)]
struct Key {
    name: String,
    /// The first object that has it as a column.
    owner: Option<String>,
    /// The first object that lies in such a directory but has no such column.
    lacking: Option<String>,
    /// How a column and a directory differ, as far as is known: of the first object.
    differing: Option<String>,
}

impl Keys {
    pub fn of(selection: &Selection, found: &Found) -> Result<Self> {
        // The log of a table says which columns are partitions.
        let names = if found.log.is_some() { Vec::new() } else { Directories::all(selection, found)? };
        Ok(Self { keys: names.into_iter().map(|name| Key { name, ..Key::default() }).collect() })
    }

    /// Looks at one object.
    pub fn see(&mut self, uri: &str, footer: &Footer) -> Result<()> {
        self.keys.iter_mut().try_for_each(|key| key.see(uri, footer))
    }

    /// The object that has such a column, if one has.
    pub fn owner(&self, name: &str) -> Option<&str> {
        self.keys.iter().find(|key| key.name == name)?.owner.as_deref()
    }

    /// Takes the columns out of `union` that may differ from the directories.
    pub fn judge(&self, union: &mut Union) {
        for Key { name, owner, lacking, differing } in &self.keys {
            let Some(owner) = owner else { continue };
            let lacking = lacking.as_ref().map(|object| {
                format!("it is a column of {owner}, but {object} has it in its directories only")
            });
            let Some(how) = differing.clone().or(lacking) else { continue };
            let Some(place) = union.fields.iter().position(|field| field.name() == name) else { continue };
            union.fields.remove(place);
            let why = format!("'{name}' is a partition key and a column: {how}: {REMEDY}");
            union.conflicts.push(Conflict { column: name.clone(), why });
        }
    }
}

impl Key {
    fn see(&mut self, uri: &str, footer: &Footer) -> Result<()> {
        let Self { name, owner, lacking, differing } = self;
        let Some((column, field)) = footer.schema.column_with_name(name) else {
            if lacking.is_none() && directory(uri, name)?.is_some() {
                *lacking = Some(uri.to_owned());
            }
            return Ok(());
        };
        owner.get_or_insert_with(|| uri.to_owned());
        if differing.is_none()
            && let Some(value) = directory(uri, name)?
        {
            *differing = difference(footer, (column, field), value.as_deref());
            if let Some(how) = differing {
                *how = format!("in {uri} {how}");
            }
        }
        Ok(())
    }
}

/// How the values of a column differ from that of a directory, or may differ. None if all are that value.
fn difference(footer: &Footer, (column, field): (usize, &Field), value: Option<&str>) -> Option<String> {
    let wanted = constant(value, field.data_type(), 1).ok();
    let groups = footer.row_groups().iter().filter(|group| group.num_rows() > 0);
    let mut facts = groups.map(|group| statistics::facts(footer, group, &ColumnOrigin::Own(column), field));
    let odd = facts.find(|facts| !wanted.as_ref().is_some_and(|wanted| is_all(facts, wanted)))?;
    let text = value.map_or("null".into(), |value| format!("'{value}'"));
    let shown = |bound: &ArrayRef| array_value_to_string(bound, 0).unwrap_or_default();
    Some(match (&odd.bounds, odd.nulls) {
        (None, Nulls::All) => format!("the directory says {text}, the column has null"),
        (Some((least, most)), nulls) => {
            let nulls = if nulls == Nulls::None { "" } else { " and maybe null" };
            let (least, most) = (shown(least), shown(most));
            format!("the directory says {text}, the column has values from '{least}' to '{most}'{nulls}")
        }
        (None, _) => format!("the directory says {text}, and the footer does not tell the column's values"),
    })
}

/// Whether all values are `wanted`, which is null or one value. Of floats nobody knows: bounds leave NaN out.
fn is_all(facts: &Facts, wanted: &ArrayRef) -> bool {
    if wanted.is_null(0) || *wanted.data_type() == DataType::Null {
        return facts.nulls == Nulls::All;
    }
    let is_wanted = |bound: &ArrayRef| bound.to_data() == wanted.to_data();
    let bounds = facts.bounds.as_ref();
    let is_one = bounds.is_some_and(|(least, most)| is_wanted(least) && is_wanted(most));
    is_one && facts.nulls == Nulls::None && !wanted.data_type().is_floating()
}
