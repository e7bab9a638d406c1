//! Two types of one form, put together.

use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use std::sync::Arc;

/// Puts two types of one form together, leaf by leaf.
#[derive(Clone, Copy)]
pub(super) struct Merge {
    pub leaf: fn(&DataType, &DataType) -> Option<DataType>,
    /// Nullable where either is; else where the first is.
    pub widens: bool,
}

/// The same types, nullable where either is.
pub(super) const UNIFIED: Merge = Merge { leaf: |a, b| (a == b).then(|| a.clone()), widens: true };

/// The first, with the time zones of the second.
pub(super) const ZONED: Merge = Merge {
    leaf: |a, b| match (a, b) {
        (DataType::Timestamp(unit, Some(_)), DataType::Timestamp(_, Some(zone))) => {
            Some(DataType::Timestamp(*unit, Some(zone.clone())))
        }
        _ => Some(a.clone()),
    },
    widens: false,
};

/// The first, with the time zones of the second where it says none.
const IN_ZONES: Merge = Merge {
    leaf: |a, b| match (a, b) {
        (DataType::Timestamp(unit, None), DataType::Timestamp(_, Some(zone))) => {
            Some(DataType::Timestamp(*unit, Some(zone.clone())))
        }
        _ => Some(a.clone()),
    },
    widens: false,
};

/// A type with the time zones of `wanted` where it says none; as it is if their forms differ.
pub(crate) fn in_zones(own: &DataType, wanted: &DataType) -> DataType {
    IN_ZONES.data_type(own, wanted).unwrap_or_else(|| own.clone())
}

/// Whether two types differ in names and nullability of nested fields only.
pub(crate) fn is_same_form(a: &DataType, b: &DataType) -> bool {
    UNIFIED.data_type(a, b).is_some()
}

impl Merge {
    pub fn field(self, a: &FieldRef, b: &Field) -> Option<FieldRef> {
        let data_type = self.data_type(a.data_type(), b.data_type())?;
        let nullable = a.is_nullable() || self.widens && b.is_nullable();
        Some(Arc::new(a.as_ref().clone().with_data_type(data_type).with_nullable(nullable)))
    }

    pub fn data_type(self, a: &DataType, b: &DataType) -> Option<DataType> {
        use DataType::*;
        // The name of a list's element is the writer's whim ("item", "element", "array").
        Some(match (a, b) {
            (List(a), List(b)) => List(self.field(a, b)?),
            (LargeList(a), LargeList(b)) => LargeList(self.field(a, b)?),
            (FixedSizeList(a, n), FixedSizeList(b, m)) if n == m => FixedSizeList(self.field(a, b)?, *n),
            (Map(a, sorted), Map(b, _)) => Map(self.entries(a, b)?, *sorted),
            (Struct(a), Struct(b)) if a.len() == b.len() => {
                let same = a.iter().zip(b).all(|(a, b)| a.name() == b.name());
                let fields = a.iter().zip(b).map(|(a, b)| self.field(a, b)).collect::<Option<Fields>>()?;
                same.then_some(Struct(fields))?
            }
            (a, b) => (self.leaf)(a, b)?,
        })
    }

    /// A map's entries: names ("entries", "key_value") are ignored too.
    fn entries(self, a: &FieldRef, b: &FieldRef) -> Option<FieldRef> {
        let ((ka, va), (kb, vb)) = (key_value(a)?, key_value(b)?);
        let fields = Fields::from(vec![self.field(ka, kb)?, self.field(va, vb)?]);
        Some(Arc::new(a.as_ref().clone().with_data_type(DataType::Struct(fields))))
    }
}

fn key_value(entries: &Field) -> Option<(&FieldRef, &FieldRef)> {
    match entries.data_type() {
        DataType::Struct(fields) if fields.len() == 2 => Some((&fields[0], &fields[1])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::TimeUnit::{self, Microsecond, Nanosecond};

    #[test]
    fn zones_are_taken_wherever_none_is_said() {
        let nested = |of: DataType| {
            let times = Field::new("times", DataType::new_list(of.clone(), true), true);
            let key_value = vec![Field::new("key", DataType::Utf8, false), Field::new("value", of, true)];
            let entries = Field::new("entries", DataType::Struct(key_value.into()), false);
            let map = Field::new("map", DataType::Map(entries.into(), false), true);
            DataType::Struct(vec![times, map].into())
        };
        let at = |unit: TimeUnit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Into::into));
        let (own, wanted) = (at(Nanosecond, None), at(Microsecond, Some("UTC")));
        let zoned = at(Nanosecond, Some("UTC"));
        assert_eq!(in_zones(&own, &wanted), zoned);
        assert_eq!(in_zones(&nested(own.clone()), &nested(wanted.clone())), nested(zoned));
        // What has a zone keeps it, and so does what has no place for one.
        for (own, wanted) in [
            (at(Nanosecond, Some("+01:00")), wanted.clone()),
            (own.clone(), own.clone()),
            (DataType::Int64, wanted.clone()),
            (own.clone(), nested(wanted.clone())),
            (nested(own), wanted),
        ] {
            assert_eq!(in_zones(&own, &wanted), own);
        }
    }
}
