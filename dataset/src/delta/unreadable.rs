//! Columns of a table that cannot be read: the others can, so that is told to those who read them.

use delta_kernel::schema::{DataType, StructField, StructType};
use delta_kernel::table_features::ColumnMappingMode;

/// Why a column cannot be read; none if it can.
pub(super) fn why(field: &StructField, mode: ColumnMappingMode) -> Option<String> {
    let name = field.name();
    if has_variant(field.data_type()) {
        return Some(format!(
            "column '{name}' is or has a variant (the table's feature variantType), which cannot be read: leave it out with \
             --columns, or write it as text (to_json) to another table"
        ));
    }
    has_other_names(field.data_type(), mode).then(|| {
        format!(
            "column '{name}' has fields with other names in the objects (the table's feature columnMapping, within a \
             struct), which cannot be read: leave it out with --columns, or write the rows to a table without the feature"
        )
    })
}

fn has_variant(data_type: &DataType) -> bool {
    match data_type {
        DataType::Variant(_) => true,
        other => within(other).into_iter().any(has_variant),
    }
}

/// Whether any field within has another name in objects.
fn has_other_names(data_type: &DataType, mode: ColumnMappingMode) -> bool {
    let renamed = |of: &StructType| of.fields().any(|field| field.name() != field.physical_name(mode));
    match data_type {
        DataType::Struct(of) if renamed(of) => true,
        other => within(other).into_iter().any(|inner| has_other_names(inner, mode)),
    }
}

/// The types that a type is made of.
fn within(data_type: &DataType) -> Vec<&DataType> {
    match data_type {
        DataType::Struct(of) => of.fields().map(StructField::data_type).collect(),
        DataType::Array(of) => vec![of.element_type()],
        DataType::Map(of) => vec![of.key_type(), of.value_type()],
        DataType::Primitive(_) | DataType::Variant(_) => Vec::new(),
    }
}
