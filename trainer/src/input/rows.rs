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
}

impl Input {
    /// From tensors whose first dimension is the rows. They may be shared memory, not to be written.
    pub fn new(rows: i64, tensors: Vec<(Role, Tensor)>, mask: Option<Tensor>) -> Self {
        Self { tensors, mask, rows }
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
        Self { tensors, mask: self.mask.as_ref().map(cut), rows }
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
}
