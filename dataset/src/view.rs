//! From frozen datasets to the one that is read: a single one, a split of it, or a mix of several.

use crate::freeze::Frozen;
use crate::schema;
use crate::selection::Selection;
use arrow::datatypes::SchemaRef;
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

#[cfg(test)]
mod tests {
    use super::*;

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
