//! From frozen datasets to the one that is read: a single one, a split of it, or a mix of several.

use crate::freeze::Frozen;
use crate::schema;
use crate::selection::Selection;
use arrow::datatypes::{FieldRef, SchemaRef};
use forebay_proto::manifest::Manifest;
use forebay_proto::view::PARTS_MAX;
use forebay_proto::{Error, Result, v1};
use std::sync::Arc;

/// A dataset as it is read.
#[derive(Debug, Clone)]
pub struct View {
    /// Of the split or the mix, where it is one.
    pub manifest: Arc<Manifest>,
    /// All its columns.
    pub schema: SchemaRef,
    /// The datasets behind it, each with the share of its rows that lie in segments which are read.
    behind: Vec<(Arc<Frozen>, f64)>,
}

/// The datasets that must be frozen for `spec`.
///
/// # Errors
/// `Invalid` if it names none, or both one and a mix.
pub fn selections(spec: &v1::DatasetSpec) -> Result<Vec<Selection>> {
    match (spec.uri.as_str(), spec.mix.as_slice()) {
        ("", []) => Err(Error::invalid("no dataset given: name a URI, or the datasets of a mix")),
        (uri, []) => Ok(vec![Selection::of(spec, uri)]),
        (_, mix) if mix.len() > PARTS_MAX => Err(Error::invalid(format!(
            "a mix of {} datasets is too large: use {PARTS_MAX} at most",
            mix.len()
        ))),
        ("", mix) if spec.split.is_none() && spec.objects.is_empty() => {
            Ok(mix.iter().map(|p| Selection::of(spec, &p.uri)).collect())
        }
        _ => Err(Error::invalid(
            "a dataset and a mix contradict each other: give one, and splits with the mix's parts",
        )),
    }
}

impl View {
    /// Puts the view together from the datasets of [`selections`], in that order.
    pub fn of(spec: &v1::DatasetSpec, frozen: Vec<Arc<Frozen>>) -> Result<Self> {
        let splits: Vec<_> = match spec.mix.as_slice() {
            [] => vec![spec.split],
            mix => mix.iter().map(|p| p.split).collect(),
        };
        if splits.len() != frozen.len() {
            return Err(Error::invalid("a view needs each of its datasets once"));
        }
        let mut manifests = Vec::with_capacity(frozen.len());
        let mut behind = Vec::with_capacity(frozen.len());
        for (frozen, split) in frozen.into_iter().zip(splits) {
            let manifest = match split {
                Some(v1::Split { by: Some(split) }) => frozen.manifest.split(&split)?,
                Some(_) => return Err(Error::invalid("a split says neither rows nor shares")),
                None => frozen.manifest.clone(),
            };
            let touched: u64 = manifest.segments().iter().map(|s| s.total_rows).sum();
            behind.push((frozen.clone(), touched as f64 / frozen.manifest.rows().max(1) as f64));
            manifests.push(manifest);
        }
        let manifest = match (spec.mix.as_slice(), manifests.pop()) {
            ([], Some(only)) => only,
            (mix, last) => {
                manifests.extend(last);
                manifests.iter().try_for_each(|other| check_mixable(&manifests[0], other))?;
                let shares = mix.iter().map(|p| p.share);
                Manifest::mix(&manifests.into_iter().zip(shares).collect::<Vec<_>>())?
            }
        };
        let schema = schema::from_ipc(manifest.schema())?;
        Ok(Self { manifest: Arc::new(manifest), schema, behind })
    }

    /// Indices of `columns`, ascending; no columns = all.
    ///
    /// # Errors
    /// `Invalid` for an unknown or repeated one, and for one on whose type the objects do not agree.
    pub fn projection(&self, columns: &[String]) -> Result<Vec<usize>> {
        let mut conflicts = self.behind.iter().flat_map(|(frozen, _)| &frozen.conflicts);
        match conflicts.find(|conflict| columns.is_empty() || columns.contains(&conflict.column)) {
            Some(conflict) => Err(Error::invalid(&conflict.why)),
            None => schema::projection(&self.schema, columns),
        }
        .map_err(|e| e.context(self.manifest.uri()))
    }

    /// For people: what was left out of the datasets, and what else they may not expect.
    pub fn notes(&self) -> Vec<String> {
        self.behind.iter().flat_map(|(f, _)| f.left_out.iter().chain(&f.notes)).cloned().collect()
    }

    /// Compressed bytes of the projected column chunks. Of a split: the dataset's, in proportion to the rows
    /// of the segments that it touches.
    pub fn projected_bytes(&self, projection: &[usize]) -> u64 {
        let bytes =
            |(f, share): &(Arc<Frozen>, f64)| (f.projected_bytes(projection) as f64 * share).round() as u64;
        self.behind.iter().map(bytes).sum()
    }
}

/// `Invalid` if two datasets differ in their columns, with the first difference.
fn check_mixable(first: &Manifest, other: &Manifest) -> Result<()> {
    if first.schema() == other.schema() {
        return Ok(());
    }
    let (a, b) = (schema::from_ipc(first.schema())?, schema::from_ipc(other.schema())?);
    let difference = |field: &FieldRef| {
        let name = field.name();
        match b.column_with_name(name) {
            None => Some(format!("only the first has column '{name}'")),
            Some((_, f)) if f.data_type() != field.data_type() => {
                let (a, b) = (field.data_type(), f.data_type());
                Some(format!("column '{name}' is {a} in the first but {b} in the second"))
            }
            Some((_, f)) if f.is_nullable() != field.is_nullable() => {
                let which = if field.is_nullable() { "first" } else { "second" };
                Some(format!("column '{name}' may be null in the {which} only"))
            }
            Some(_) => None,
        }
    };
    let further = b.fields().iter().find(|field| a.column_with_name(field.name()).is_none());
    let further = further.map(|field| format!("only the second has column '{}'", field.name()));
    let what = a.fields().iter().find_map(difference).or(further);
    let is_moved = a.fields().iter().map(|f| f.name()).ne(b.fields().iter().map(|f| f.name()));
    let rest =
        if is_moved { "their columns stand in another order" } else { "their columns have other metadata" };
    let what = what.unwrap_or_else(|| rest.to_owned());
    Err(Error::invalid(format!(
        "{} and {} cannot be mixed: {what}: write their objects with one schema",
        first.uri(),
        other.uri()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::DataType::{self, Int8, Int64};
    use arrow::datatypes::{Field, Schema};

    #[test]
    fn datasets_that_cannot_be_mixed_are_told_their_first_difference() {
        let manifest = |columns: &[(&str, DataType, bool)]| {
            let fields = columns.iter().map(|(name, t, nullable)| Field::new(*name, t.clone(), *nullable));
            let schema = schema::to_ipc(&Schema::new(fields.collect::<Vec<_>>())).unwrap();
            Manifest::new("s3://b/p", 1, schema, vec![], &[]).unwrap()
        };
        let first = manifest(&[("x", Int64, true), ("y", Int8, false)]);
        assert!(check_mixable(&first, &first.clone()).is_ok());
        for (other, what) in [
            (manifest(&[("x", Int64, true)]), "only the first has column 'y'"),
            (
                manifest(&[("x", Int8, true), ("y", Int8, false)]),
                "'x' is Int64 in the first but Int8 in the second",
            ),
            (manifest(&[("x", Int64, false), ("y", Int8, false)]), "'x' may be null in the first only"),
            (
                manifest(&[("x", Int64, true), ("y", Int8, false), ("z", Int8, false)]),
                "only the second has column 'z'",
            ),
            (manifest(&[("y", Int8, false), ("x", Int64, true)]), "their columns stand in another order"),
        ] {
            let e = check_mixable(&first, &other).unwrap_err();
            assert!(e.message.contains(what) && e.message.contains("with one schema"), "{e}");
        }
    }

    #[test]
    fn what_is_named_is_one_dataset_or_a_mix_of_some() {
        let part = |uri: &str| v1::MixPart { uri: uri.into(), share: 1.0, split: None };
        let spec = |uri: &str, mix| v1::DatasetSpec { uri: uri.into(), mix, ..Default::default() };
        let uris = |spec| selections(&spec).map(|all| all.into_iter().map(|s| s.uri).collect::<Vec<_>>());
        assert_eq!(uris(spec("s3://b", vec![])).unwrap(), ["s3://b"]);
        assert_eq!(uris(spec("", vec![part("s3://b"), part("s3://c")])).unwrap(), ["s3://b", "s3://c"]);
        for bad in
            [spec("", vec![]), spec("s3://b", vec![part("s3://c")]), spec("", vec![part("s3://b"); 101])]
        {
            assert!(uris(bad).is_err());
        }
    }
}
