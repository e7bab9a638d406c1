//! What of a schema is packed, and the forms in which that is stored and sent.

use super::layout::RowLayout;
use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use std::sync::Arc;

/// The form in which messages hold narrow columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Form {
    /// As Arrow columns, like all others.
    #[default]
    Columns,
    /// As packed rows.
    Packed,
}

/// A schema, and the form in which its packed rows are stored and sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedSchema {
    /// The columns as readers see them.
    pub schema: SchemaRef,
    /// Where the narrow ones lie in a packed row; `None` if nothing is packed.
    pub layout: Option<RowLayout>,
    /// The columns as they are stored and sent: first the packed rows as one column of binaries, then the
    /// columns that are not narrow, in their order.
    pub physical: SchemaRef,
}

impl PackedSchema {
    /// Decides which columns are packed.
    pub fn new(schema: SchemaRef) -> Self {
        let Some(layout) = RowLayout::of(&schema) else { return Self::unpacked(schema) };
        let rows = DataType::FixedSizeBinary(layout.width as i32);
        let mut fields: Vec<FieldRef> = vec![Arc::new(Field::new("packed rows", rows, false))];
        let columns = schema.fields().iter().enumerate();
        fields.extend(columns.filter(|(c, _)| !layout.has(*c)).map(|(_, field)| field.clone()));
        Self { schema, layout: Some(layout), physical: Arc::new(Schema::new(fields)) }
    }

    /// A form in which nothing is packed.
    pub fn unpacked(schema: SchemaRef) -> Self {
        Self { physical: schema.clone(), schema, layout: None }
    }

    /// The columns as readers see them, from the narrow ones and the others.
    pub fn columns(&self, packed: Vec<ArrayRef>, others: Vec<ArrayRef>) -> Vec<ArrayRef> {
        let (mut packed, mut others) = (packed.into_iter(), others.into_iter());
        let is_packed = |c: usize| self.layout.as_ref().is_some_and(|layout| layout.has(c));
        let columns = (0..self.schema.fields().len())
            .filter_map(|c| if is_packed(c) { packed.next() } else { others.next() });
        columns.collect()
    }
}
