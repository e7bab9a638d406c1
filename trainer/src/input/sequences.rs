//! Documents as the gpt takes them packed: sequences of one length, with the number of each token's document.

use anyhow::{Result, ensure};
use arrow::array::{Array, AsArray};
use arrow::buffer::Buffer;
use arrow::datatypes::Int64Type;
use forebay_c10d::tensor_from_owner;
use forebay_client::loader::Sequences;
use tch::{Kind, Tensor};

use super::tokens::{check, integers, rows_of};

/// The document number of a place without a token.
pub const NO_DOCUMENT: i32 = -1;

/// What documents become.
#[derive(Debug)]
pub(super) struct PackedTokens {
    /// `[sequences, length + 1]`: the tokens of each sequence and the one to be predicted behind them, `pad`
    /// where there is none.
    pub tokens: Tensor,
    /// Of the same shape: which of the sequence's documents a token belongs to, counted from 0.
    pub documents: Tensor,
    /// `[sequences]` of 1 for those with a token; `None` when all have one.
    pub mask: Option<Tensor>,
}

/// The rows of `column` as `sequences` says.
pub(super) fn packed(
    name: &str,
    column: &dyn Array,
    sequences: &Sequences,
    vocab: i64,
    pad: i64,
) -> Result<PackedTokens> {
    let Sequences { count, length, skip, tokens: mut left, own, .. } = *sequences;
    let (rows, values) = rows_of(name, column, usize::MAX)?;
    let (from, to) = (rows.first().map_or(0, |row| row.start), rows.last().map_or(0, |row| row.end));
    let values = integers(name, &values.slice(from, to - from))?;
    let values = values.as_primitive::<Int64Type>().values();
    let (length, wide) = (length as usize, length as usize + 1);
    let places = count as usize * wide;
    let (mut tokens, mut documents) = (vec![pad; places], vec![NO_DOCUMENT; places]);
    let (mut sequence, mut filled, mut document) = (0, 0, 0);
    for (index, row) in rows.iter().enumerate() {
        let skip = if index == 0 { skip as usize } else { 0 };
        ensure!(skip <= row.len(), "column `{name}` has a shorter row than when its lengths were read");
        let mut text = &values[row.start - from + skip..row.end - from];
        while !text.is_empty() && left > 0 {
            let taken = text.len().min(length - filled).min(left as usize);
            // One more to be predicted, which opens the next sequence too.
            let seen = if filled + taken == length { text.len().min(taken + 1) } else { taken };
            check(name, text[..seen].iter().copied(), vocab)?;
            let first = sequence * wide + filled;
            tokens[first..first + seen].copy_from_slice(&text[..seen]);
            documents[first..first + seen].fill(document);
            (left, filled, document) = (left - taken as u64, filled + taken, document + 1);
            text = &text[taken..];
            if filled == length {
                (sequence, filled, document) = (sequence + 1, 0, 0);
            }
        }
    }
    ensure!(left == 0, "column `{name}` has {left} tokens less than when its lengths were read");
    let sizes = [count as i64, wide as i64];
    let mask = (own < count).then(|| {
        let used: Vec<_> = (0..count).map(|sequence| f32::from(sequence < own)).collect();
        Tensor::from_slice(&used)
    });
    Ok(PackedTokens {
        tokens: tensor_from_owner(Buffer::from_vec(tokens), &sizes, Kind::Int64)?,
        documents: tensor_from_owner(Buffer::from_vec(documents), &sizes, Kind::Int)?,
        mask,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::ListArray;
    use arrow::datatypes::UInt16Type;

    fn texts(rows: &[&[u16]]) -> ListArray {
        let rows = rows.iter().map(|row| Some(row.iter().map(|token| Some(*token))));
        ListArray::from_iter_primitive::<UInt16Type, _, _>(rows)
    }

    #[test]
    fn documents_follow_each_other_and_go_on_in_the_next_sequence() {
        let column = texts(&[&[9, 9], &[90, 1, 2], &[], &[3, 4, 5, 6, 7, 8, 9], &[10, 11, 99]]);
        let sequences =
            Sequences { count: 4, length: 4, first: 0, skip: 1, tokens: 11, own: 3, all: 3, tokens_done: 2 };
        let PackedTokens { tokens, documents, mask } =
            packed("t", &column.slice(1, 4), &sequences, 100, 0).unwrap();
        let rows = |tensor: &Tensor| {
            let tensor = tensor.to_kind(Kind::Int64);
            tensor.unbind(0).iter().map(|row| Vec::<i64>::try_from(row).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(rows(&tokens), [[1, 2, 3, 4, 5], [5, 6, 7, 8, 9], [9, 10, 11, 0, 0], [0, 0, 0, 0, 0]]);
        let none = i64::from(NO_DOCUMENT);
        assert_eq!(rows(&documents), [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [0, 1, 1, none, none], [none; 5]]);
        assert_eq!(Vec::<f32>::try_from(mask.unwrap()).unwrap(), [1.0, 1.0, 1.0, 0.0]);
        // Where a document ends with its sequence there is nothing behind it.
        let exact =
            Sequences { count: 1, length: 4, first: 0, skip: 0, tokens: 4, own: 1, all: 1, tokens_done: 0 };
        let whole = packed("t", &texts(&[&[1, 2], &[3, 4], &[5]]), &exact, 100, 0).unwrap();
        assert_eq!(rows(&whole.documents), [[0, 0, 1, 1, none]]);
        assert!(whole.mask.is_none());
    }

    #[test]
    fn rows_that_are_not_as_they_were_and_tokens_out_of_range_are_refused() {
        let sequences =
            Sequences { count: 1, length: 4, first: 0, skip: 2, tokens: 4, own: 1, all: 1, tokens_done: 0 };
        let why =
            |rows: &[&[u16]], vocab| packed("t", &texts(rows), &sequences, vocab, 0).unwrap_err().to_string();
        assert!(why(&[&[1]], 9).contains("a shorter row than"));
        assert!(why(&[&[1, 2, 3]], 9).contains("3 tokens less than"));
        assert!(why(&[&[1, 2, 3, 4, 5, 9]], 9).contains("the token 9"));
        // What was taken before, or comes later, is not looked at.
        assert!(packed("t", &texts(&[&[99, 99, 3, 4, 5, 6, 7, 99]]), &sequences, 9, 0).is_ok());
    }
}
