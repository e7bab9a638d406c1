//! One schema out of those of all objects: by name, in order of first sight.
//!
//! A column that some object lacks is nullable. Types become the narrowest that holds all values
//! ([`super::widen`]); where there is none the column is in conflict, which is told to those who read it and
//! to nobody else.

use super::merge::is_same_form;
use super::widen::{WIDENED, is_readable_as};
use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A column whose types in two objects have nothing in common: the dataset has it not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Its name.
    pub column: String,
    /// The objects, their types, and what to do.
    pub why: String,
}

/// What to do about a conflict.
const REMEDY: &str = ": leave it out with --columns, read a sub-prefix, or take the schema of one object with --schema-of OBJECT";

/// A schema, and what does not fit into it.
#[derive(Debug, Default)]
pub(crate) struct Union {
    pub fields: Vec<FieldRef>,
    pub conflicts: Vec<Conflict>,
}

/// One of the schemas, and the first object that has it.
#[derive(Debug, Clone)]
pub(crate) struct Sighting {
    /// As it is put together with others.
    pub schema: SchemaRef,
    /// With the types that the object has itself.
    pub own: SchemaRef,
    pub object: String,
}

struct Column<'a> {
    field: FieldRef,
    /// What gave it its type.
    object: &'a str,
    conflict: Option<String>,
}

/// The union of all. Extension types are those of the first.
pub(crate) fn all(sightings: &[Sighting]) -> Union {
    let (mut columns, mut places) = (Vec::<Column<'_>>::new(), HashMap::<&str, usize>::new());
    for (i, Sighting { schema, object, .. }) in sightings.iter().enumerate() {
        for field in schema.fields() {
            match places.get(field.name().as_str()) {
                Some(place) => columns[*place].take(field, object),
                None => {
                    places.insert(field.name(), columns.len());
                    let nullable = field.is_nullable() || i > 0;
                    let field = Arc::new(field.as_ref().clone().with_nullable(nullable));
                    columns.push(Column { field, object, conflict: None });
                }
            }
        }
        let own: HashSet<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        columns.iter_mut().filter(|c| !own.contains(c.field.name().as_str())).for_each(Column::lack);
    }
    Union::of(columns)
}

/// The schema of one object, into which the others must fit.
pub(crate) fn like(chosen: &Sighting, sightings: &[Sighting]) -> Union {
    let mut columns = Vec::new();
    for field in chosen.schema.fields() {
        let mut column = Column { field: field.clone(), object: &chosen.object, conflict: None };
        for Sighting { schema, object, .. } in sightings {
            let wanted = column.field.data_type();
            match schema.column_with_name(field.name()) {
                None => column.lack(),
                Some((_, found)) if is_same_form(wanted, found.data_type()) => column.take(found, object),
                Some((_, found)) if !is_readable_as(found.data_type(), wanted) => {
                    column.refuse(found, object)
                }
                Some((_, found)) if found.is_nullable() => column.lack(),
                Some(_) => {}
            }
        }
        columns.push(column);
    }
    Union::of(columns)
}

/// Names that differ in case only, as pairs.
pub(crate) fn differing_in_case(schema: &Schema) -> Vec<(&str, &str)> {
    let mut seen: HashMap<String, &str> = HashMap::new();
    let names = schema.fields().iter().map(|f| f.name().as_str());
    names.filter_map(|name| Some((seen.insert(name.to_lowercase(), name)?, name))).collect()
}

/// The columns of the dataset that an object of schema `own` has with another type.
pub(crate) fn adapted(schema: &Schema, own: &Schema) -> Vec<FieldRef> {
    let differs = |field: &&FieldRef| {
        let own = own.column_with_name(field.name());
        own.is_some_and(|(_, own)| !is_same_form(field.data_type(), own.data_type()))
    };
    schema.fields().iter().filter(differs).cloned().collect()
}

/// Whether an object of schema `own` has exactly the columns of the dataset, in its order and types.
pub(crate) fn is_plain(schema: &Schema, own: &Schema) -> bool {
    let is_same =
        |(a, b): (&FieldRef, &FieldRef)| a.name() == b.name() && is_same_form(a.data_type(), b.data_type());
    schema.fields().len() == own.fields().len() && schema.fields().iter().zip(own.fields()).all(is_same)
}

impl Union {
    /// Says something else that helps with conflicts, where one schema decides.
    pub fn advise(&mut self, remedy: &str) {
        for conflict in &mut self.conflicts {
            let what = conflict.why.strip_suffix(REMEDY).unwrap_or(&conflict.why);
            conflict.why = format!("{what}: {remedy}");
        }
    }

    fn of(columns: Vec<Column<'_>>) -> Self {
        let mut union = Self::default();
        for Column { field, conflict, .. } in columns {
            match conflict {
                None => union.fields.push(field),
                Some(why) => union.conflicts.push(Conflict { column: field.name().clone(), why }),
            }
        }
        union
    }
}

impl<'a> Column<'a> {
    /// Widens the column so that it holds that of a further object.
    fn take(&mut self, other: &Field, object: &'a str) {
        if self.conflict.is_some() {
            return;
        }
        match WIDENED.field(&self.field, other) {
            None => self.refuse(other, object),
            Some(joined) => {
                if !is_same_form(joined.data_type(), self.field.data_type()) {
                    self.object = object;
                }
                self.field = joined;
            }
        }
    }

    fn refuse(&mut self, other: &Field, object: &str) {
        let Self { field, object: first, conflict } = self;
        conflict.get_or_insert_with(|| {
            format!(
                "column '{}' is {} in {first} but {} in {object}{REMEDY}",
                other.name(),
                field.data_type(),
                other.data_type()
            )
        });
    }

    fn lack(&mut self) {
        if !self.field.is_nullable() {
            self.field = Arc::new(self.field.as_ref().clone().with_nullable(true));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::DataType::{self, *};

    fn sighting(object: &str, fields: &[(&str, DataType, bool)]) -> Sighting {
        let fields = fields.iter().map(|(name, t, nullable)| Field::new(*name, t.clone(), *nullable));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        Sighting { own: schema.clone(), schema, object: object.into() }
    }

    fn names(fields: &[FieldRef]) -> Vec<&str> {
        fields.iter().map(|f| f.name().as_str()).collect()
    }

    #[test]
    fn columns_are_found_by_name_in_order_of_first_sight() {
        let union = all(&[
            sighting("a", &[("x", Int32, false), ("y", Utf8, false)]),
            sighting("b", &[("z", Int8, false), ("y", Utf8, false), ("x", Int64, false)]),
        ]);
        let of = |name: &str, t, nullable| Arc::new(Field::new(name, t, nullable));
        assert_eq!(union.fields, [of("x", Int64, false), of("y", Utf8, false), of("z", Int8, true)]);
        assert!(union.conflicts.is_empty());
        let union = all(&[sighting("a", &[("x", Int8, false)]), sighting("b", &[])]);
        assert!(union.fields[0].is_nullable(), "b has it not");
    }

    #[test]
    fn nullability_of_nested_fields_widens() {
        let element = Arc::new(Field::new("element", Int32, true));
        let union = all(&[
            sighting("a", &[("x", DataType::new_list(Int32, false), false)]),
            sighting("b", &[("x", List(element), true)]),
        ]);
        assert_eq!(union.fields[0].as_ref(), &Field::new("x", DataType::new_list(Int32, true), true));
    }

    #[test]
    fn a_conflict_names_both_objects_and_types_and_spares_the_other_columns() {
        let union = all(&[
            sighting("s3://b/a", &[("x", Int32, false), ("y", Int8, false)]),
            sighting("s3://b/b", &[("x", Int64, false), ("y", Int8, false)]),
            sighting("s3://b/c", &[("x", Utf8, false), ("y", Int8, false)]),
            sighting("s3://b/d", &[("x", Int8, false), ("y", Int8, false)]),
        ]);
        assert_eq!(names(&union.fields), ["y"]);
        let [Conflict { column, why }] = &union.conflicts[..] else { panic!("{:?}", union.conflicts) };
        assert_eq!(column, "x");
        for part in ["Int64 in s3://b/b", "Utf8 in s3://b/c", "--columns", "--schema-of"] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn the_schema_of_one_object_stands() {
        let one = sighting("a", &[("x", Int32, false), ("s", Utf8, false)]);
        let others = [
            one.clone(),
            sighting("b", &[("x", Int64, true), ("more", Int8, false)]),
            sighting("c", &[("x", Int8, false), ("s", Int8, false)]),
        ];
        let mut union = like(&one, &others);
        assert_eq!(union.fields, [Arc::new(Field::new("x", Int32, true))]);
        union.advise("do something else");
        let why = &union.conflicts[0].why;
        assert!(why.ends_with("Int8 in c: do something else"), "{why}");
    }

    #[test]
    fn an_object_may_have_columns_in_other_types_and_order() {
        let whole = sighting("", &[("x", Int64, true), ("ID", Int8, true), ("id", Int8, true)]).schema;
        assert_eq!(differing_in_case(&whole), [("ID", "id")]);
        let own = sighting("", &[("ID", Int8, false), ("x", Int32, false)]).schema;
        assert_eq!(names(&adapted(&whole, &own)), ["x"]);
        assert!(!is_plain(&whole, &own) && is_plain(&whole, &whole));
    }
}
