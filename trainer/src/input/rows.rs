//! Rows of a batch as tensors: what a model takes.

use anyhow::{Context, Result};
use tch::{Kind, Tensor};

use super::schema::Role;

/// One rank's rows of a step, or some of them: `B` rows, one tensor for each role. Images are `[B, 784]` or
/// `[B, C, H, W]` of bytes, features `[B, F]` of 32-bit floats, tokens `[B, T + 1]` of integers, labels
/// `[B]`.
#[derive(Debug)]
pub struct Input {
    tensors: Vec<(Role, Tensor)>,
    /// `[B]` of 1 for samples and 0 for padding; `None` when all are samples.
    mask: Option<Tensor>,
    rows: i64,
    text: TextCount,
}

/// How much of what a model reads is text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextCount {
    /// Tokens that are read.
    pub tokens: u64,
    /// Places for them, those of padding included.
    pub places: u64,
}

impl Input {
    /// From tensors whose first dimension is the rows. They may be shared memory, not to be written.
    pub fn new(rows: i64, tensors: Vec<(Role, Tensor)>, mask: Option<Tensor>) -> Self {
        Self { tensors, mask, rows, text: TextCount::default() }
    }

    /// The same with its [`Input::text`] counted. Not for a device: it reads values.
    pub fn counted(mut self) -> Self {
        self.text = self.count_text().unwrap_or_default();
        self
    }

    /// How much of it is text, as far as that was counted.
    pub fn text(&self) -> TextCount {
        self.text
    }

    /// The tensor of a role.
    pub fn get(&self, role: Role) -> Result<&Tensor> {
        self.find(role).with_context(|| format!("the batch has no {role}"))
    }

    /// The tensor of a role that not every batch has.
    pub fn find(&self, role: Role) -> Option<&Tensor> {
        self.tensors.iter().find(|(own, _)| *own == role).map(|(_, tensor)| tensor)
    }

    /// `[B]` of 1 for samples and 0 for padding; `None` when all are samples.
    pub fn mask(&self) -> Option<&Tensor> {
        self.mask.as_ref()
    }

    fn count_text(&self) -> Option<TextCount> {
        let [rows, length] = self.find(Role::Tokens)?.size()[..] else { return None };
        // The last one of each row is only predicted.
        let length = length - 1;
        let sum = |values: Tensor| values.sum(Kind::Int64).int64_value(&[]).max(0) as u64;
        let samples = |own: Tensor| match &self.mask {
            Some(mask) => own * mask.to_kind(Kind::Int64),
            None => own,
        };
        let tokens = match (self.find(Role::Documents), self.find(Role::Lengths)) {
            (Some(documents), _) => sum(documents.narrow(1, 0, length).ge(0)),
            (None, Some(lengths)) => sum(samples(lengths.clamp_max(length))),
            (None, None) => sum(samples(Tensor::full([rows], length, (Kind::Int64, tch::Device::Cpu)))),
        };
        Some(TextCount { tokens, places: (rows * length) as u64 })
    }

    /// Rows, padding included.
    pub fn rows(&self) -> i64 {
        self.rows
    }

    /// Bytes of all its tensors.
    pub fn bytes(&self) -> u64 {
        let size = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        self.tensors().map(size).sum()
    }

    /// Some of its rows, not copied.
    pub fn narrow(&self, first: i64, rows: i64) -> Self {
        let cut = |tensor: &Tensor| tensor.narrow(0, first, rows);
        let tensors = self.tensors.iter().map(|(role, tensor)| (*role, cut(tensor))).collect();
        Self { tensors, mask: self.mask.as_ref().map(cut), rows, text: TextCount::default() }
    }

    /// Its rows in `parts` stretches of about the same length, in order; fewer if there are not as many rows.
    pub fn split(&self, parts: u64) -> Vec<Self> {
        let parts = (parts as i64).clamp(1, self.rows.max(1));
        let cut = |part: i64| part * self.rows / parts;
        (0..parts).map(|part| self.narrow(cut(part), cut(part + 1) - cut(part))).collect()
    }

    /// The rows of these numbers, copied.
    pub fn select(&self, rows: &Tensor) -> Result<Self> {
        let selected = self.try_map(|tensor| Ok(tensor.f_index_select(0, rows)?))?;
        Ok(Self { rows: rows.numel() as i64, ..selected })
    }

    /// The sum of `values` `[B]`, one for each row, as a tensor of one number of `kind`. Those of padding are
    /// left out, even if they are not finite.
    pub fn masked_sum(&self, values: &Tensor, kind: Kind) -> Tensor {
        match &self.mask {
            Some(mask) => values.masked_fill(&mask.eq(0), 0).sum(kind),
            None => values.sum(kind),
        }
    }

    /// All its tensors, the mask included.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter().map(|(_, tensor)| tensor).chain(&self.mask)
    }

    /// The same with each tensor, the mask included, replaced.
    pub fn try_map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Self {
            tensors: self
                .tensors
                .iter()
                .map(|(role, tensor)| Ok((*role, f(tensor)?)))
                .collect::<Result<_>>()?,
            mask: self.mask.as_ref().map(f).transpose()?,
            rows: self.rows,
            text: self.text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_covers_all_rows_in_order() {
        let mask = Tensor::from_slice(&[1f32, 1., 1., 1., 1., 1., 0.]);
        let input = Input::new(7, vec![(Role::Label, Tensor::arange(7, tch::kind::INT64_CPU))], Some(mask));
        assert_eq!(input.bytes(), 7 * 8 + 7 * 4);
        for (parts, lengths) in [(1, vec![7]), (3, vec![2, 2, 3]), (9, vec![1; 7])] {
            let parts = input.split(parts);
            assert_eq!(parts.iter().map(Input::rows).collect::<Vec<_>>(), lengths);
            let labels: Vec<_> = parts.iter().map(|part| part.get(Role::Label).unwrap()).collect();
            assert!(Tensor::cat(&labels, 0).equal(input.get(Role::Label).unwrap()));
            let masks: Vec<_> = parts.iter().map(|part| part.mask().unwrap()).collect();
            assert!(Tensor::cat(&masks, 0).equal(input.mask().unwrap()));
        }
        assert_eq!(input.get(Role::Image).unwrap_err().to_string(), "the batch has no image");
    }

    #[test]
    fn text_is_counted_apart_from_padding() {
        let tokens = || (Role::Tokens, Tensor::zeros([3, 5], tch::kind::INT64_CPU));
        let mask = || Some(Tensor::from_slice(&[1f32, 1., 0.]));
        let text = |tensors, mask| Input::new(3, tensors, mask).counted().text();
        let count = |tokens| TextCount { tokens, places: 12 };
        assert_eq!(text(vec![tokens()], None), count(12));
        assert_eq!(text(vec![tokens()], mask()), count(8));
        let lengths = (Role::Lengths, Tensor::from_slice(&[5i64, 2, 5]));
        assert_eq!(text(vec![tokens(), lengths], mask()), count(6));
        let documents = Tensor::from_slice(&[0, 0, 1, 1, 1, 0, 0, -1, -1, -1, -1, -1, -1, -1, -1]);
        let documents = (Role::Documents, documents.view([3, 5]));
        assert_eq!(text(vec![tokens(), documents], mask()), count(6));
    }
}
