//! Where a column of the dataset comes from in one of its objects.

use crate::parquet::footer::Footer;
use crate::partitions;
use crate::schema::merge::is_same_form;
use arrow::datatypes::Field;
use forebay_proto::Result;
use forebay_proto::manifest::Shape;

/// What gives the values of a column of the dataset in one of its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ColumnOrigin {
    /// The object's column of this index, as it is.
    Own(usize),
    /// The object's column of this index, in another type.
    Adapted(usize),
    /// One value, or null, in all rows: the directory's, or what a table's log says.
    Partition(Option<String>),
    /// The object lacks it: it is null.
    Missing,
}

/// Where `field` of a dataset of `shape`, its column number `index`, comes from in the object at `uri`, the
/// dataset's number `object`. `None` if it cannot be the object that the dataset was made of.
pub(crate) fn origin(
    shape: Option<&Shape>,
    footer: &Footer,
    (object, uri): (usize, &str),
    (index, field): (usize, &Field),
) -> Result<Option<ColumnOrigin>> {
    if let Some(value) = shape.and_then(|shape| shape.value_of(object, field.name())) {
        return Ok(Some(ColumnOrigin::Partition(value.text.clone())));
    }
    let name = shape.map_or(field.name().as_str(), |shape| shape.source_of(field.name()));
    // Mostly all objects have the same columns: a table of thousands is not searched for each.
    let at_same_place = footer.schema.fields().get(index).filter(|own| own.name() == name);
    let own = match at_same_place {
        Some(own) => Some((index, own.as_ref())),
        None => footer.schema.column_with_name(name),
    };
    let Some(shape) = shape else { return Ok(own.map(|(column, _)| ColumnOrigin::Own(column))) };
    Ok(match own {
        Some((column, own)) if is_same_form(field.data_type(), own.data_type()) => {
            Some(ColumnOrigin::Own(column))
        }
        Some((column, _)) => Some(ColumnOrigin::Adapted(column)),
        None if shape.partitions.contains(field.name()) => {
            Some(ColumnOrigin::Partition(partitions::value(uri, field.name())?))
        }
        None => field.is_nullable().then_some(ColumnOrigin::Missing),
    })
}

impl ColumnOrigin {
    /// The object's column that it is made of.
    pub(crate) fn own(&self) -> Option<usize> {
        match self {
            Self::Own(column) | Self::Adapted(column) => Some(*column),
            Self::Partition(_) | Self::Missing => None,
        }
    }
}
