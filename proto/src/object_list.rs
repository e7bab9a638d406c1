//! Lists of objects that do not fit into one message: a dataset of many objects is opened in parts.

use crate::error::{Error, Result};
use crate::v1::{DatasetSpec, Object, OpenRequest};
use prost::Message as _;

/// Bytes of a request that is sent in one message: nodes take 4 MiB.
pub const MESSAGE_BYTES_MAX: usize = 3 << 20;

/// Bytes of all objects of a list, a million or so.
pub const LIST_BYTES_MAX: usize = 128 << 20;

/// Bytes of objects in each part.
const PART_BYTES: usize = 1 << 20;

/// A request in parts, each of about 1 MiB: the first has all but the rest of the objects.
pub fn parts(mut request: OpenRequest) -> Vec<OpenRequest> {
    let objects = request.dataset.as_mut().map(|dataset| std::mem::take(&mut dataset.objects));
    let mut parts = vec![request];
    let mut bytes = 0;
    for object in objects.unwrap_or_default() {
        let length = object.encoded_len();
        if bytes + length > PART_BYTES {
            parts.push(OpenRequest { dataset: Some(DatasetSpec::default()), ..OpenRequest::default() });
            bytes = 0;
        }
        bytes += length;
        if let Some(dataset) = parts.last_mut().and_then(|part| part.dataset.as_mut()) {
            dataset.objects.push(object);
        }
    }
    parts
}

/// A request that comes in parts.
#[derive(Debug, Default)]
pub struct RequestParts {
    request: Option<OpenRequest>,
    bytes: usize,
}

impl RequestParts {
    /// Adds the next part; `Invalid` if the list becomes larger than [`LIST_BYTES_MAX`].
    pub fn add(&mut self, part: OpenRequest) -> Result<()> {
        let objects = |part: &OpenRequest| part.dataset.as_ref().map_or(0, |dataset| bytes(&dataset.objects));
        self.bytes = self.bytes.saturating_add(objects(&part));
        if self.bytes > LIST_BYTES_MAX {
            return Err(Error::invalid(format!(
                "the list of objects has more than {LIST_BYTES_MAX} bytes: name a prefix or a pattern, or join small objects"
            )));
        }
        match &mut self.request {
            None => self.request = Some(part),
            Some(OpenRequest { dataset: Some(all), .. }) => {
                all.objects.extend(part.dataset.unwrap_or_default().objects);
            }
            Some(_) => return Err(Error::invalid("open: a list of objects of no dataset")),
        }
        Ok(())
    }

    /// The whole; `Invalid` if there was no part.
    pub fn request(self) -> Result<OpenRequest> {
        self.request.ok_or_else(|| Error::invalid("open: no dataset given"))
    }
}

fn bytes(objects: &[Object]) -> usize {
    objects.iter().map(|object| object.encoded_len() + size_of::<Object>()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(lengths: &[usize]) -> OpenRequest {
        let object = |(i, length): (usize, &usize)| {
            let key = format!("{i:07}{}", "k".repeat(*length));
            Object { key, etag: format!("{i:032x}"), size: 1 << 40, ..Default::default() }
        };
        let objects = lengths.iter().enumerate().map(object).collect();
        let dataset =
            DatasetSpec { uri: "s3://b/t".into(), filter: "x > 3".into(), objects, ..Default::default() };
        OpenRequest { dataset: Some(dataset), columns: vec!["x".into()], version_ids: true, protocol: None }
    }

    fn joined(parts: Vec<OpenRequest>) -> Result<OpenRequest> {
        let mut all = RequestParts::default();
        parts.into_iter().try_for_each(|part| all.add(part))?;
        all.request()
    }

    #[test]
    fn a_list_of_200_000_objects_comes_in_parts_that_a_node_takes() {
        let whole = request(&vec![80; 200_000]);
        assert!(whole.encoded_len() > 20 << 20);
        let parts = parts(whole.clone());
        assert!(parts.iter().all(|part| part.encoded_len() < MESSAGE_BYTES_MAX));
        assert_eq!(joined(parts).unwrap(), whole);
    }

    #[test]
    fn a_list_without_end_is_refused() {
        let (part, mut all) = (request(&vec![900; 1000]), RequestParts::default());
        let refused = (0..1000).find_map(|_| all.add(part.clone()).err()).unwrap();
        assert!(refused.message.contains("more than 134217728 bytes"), "{refused}");
        assert!(RequestParts::default().request().is_err());
        let mut none = RequestParts::default();
        none.add(OpenRequest::default()).unwrap();
        assert!(none.add(request(&[1])).is_err());
    }

    proptest! {
        #[test]
        fn parts_are_the_whole(lengths in prop::collection::vec(0usize..200_000, 0..40)) {
            let whole = request(&lengths);
            prop_assert_eq!(joined(parts(whole.clone())).unwrap(), whole);
        }
    }
}
