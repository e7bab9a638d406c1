//! Which columns a model takes, and whether a dataset has them in the right shape.

use std::collections::HashMap;

use anyhow::{Context, Result, bail, ensure};
use arrow::datatypes::{DataType, Schema};
use forebay_images::{ImageSettings, ImageSource};

use super::fill::{Fill, FillRule};
use super::schema::{Role, is_number, kind_of, numbers, shape};

/// The columns that a model takes, in a fixed order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Columns {
    pub(super) wanted: Vec<Wanted>,
}

/// One column.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wanted {
    pub role: Role,
    /// A column, or a field of a struct column by its path.
    pub name: String,
    /// The flag that chooses another.
    pub flag: &'static str,
    pub takes: Takes,
    /// What stands for a null.
    pub fill: Option<f64>,
}

/// What a column must hold.
#[derive(Debug, Clone, PartialEq)]
pub enum Takes {
    /// `FixedSizeList<UInt8>[length]`: the tensor `[B, length]` is the loader's own memory.
    Bytes {
        /// Bytes of a row.
        length: i64,
    },
    /// An integer from 0 to below `classes`: the tensor is `[B]` of 64-bit integers.
    Class {
        /// Labels are below this.
        classes: i64,
    },
    /// Images of any kind that its settings name: the tensor is `[B, C, H, W]` of bytes.
    Image(ImageSettings),
    /// A number or a time: the tensor is `[B]` of 32-bit floats.
    Number,
    /// A number or a time, or a list of them of a fixed length. Several such columns are one tensor, `[B, F]`
    /// of 32-bit floats.
    Numbers,
    /// Integers from 0 to below `vocab` in a list of a fixed length: the tensor is `[B, length]`.
    Tokens {
        /// Tokens of a row.
        length: i64,
        /// The number of different tokens.
        vocab: i64,
    },
    /// The same in lists of any length, whose tokens beyond `length` are left out: the tensor is
    /// `[B, length]`, with `pad` where a row is shorter, and another of [`Role::Lengths`] goes with it.
    RaggedTokens {
        /// Tokens of a row of the tensor.
        length: i64,
        /// The number of different tokens.
        vocab: i64,
        /// One of them.
        pad: i64,
    },
    /// The same in lists of any length that are packed to sequences of `length` tokens: the tensor is
    /// `[B, length + 1]`, with `pad` where there is no token, and another of [`Role::Documents`] goes with
    /// it.
    PackedTokens {
        /// Tokens of a sequence.
        length: i64,
        /// The number of different tokens.
        vocab: i64,
        /// One of them.
        pad: i64,
    },
}

impl Columns {
    /// With one more. `flag` chooses the column.
    pub fn with(mut self, role: Role, name: &str, flag: &'static str, takes: Takes) -> Self {
        self.wanted.push(Wanted { role, name: name.to_owned(), flag, takes, fill: None });
        self
    }

    /// With what the rules put in place of nulls; `means` are those of the columns that a rule wants it of.
    pub fn filled(mut self, rules: &[FillRule], means: &HashMap<String, f64>) -> Result<Self> {
        for rule in rules {
            let named = rule.column.as_deref();
            let mut found = false;
            for wanted in self.wanted.iter_mut().filter(|wanted| wanted.follows(rule, rules)) {
                found = true;
                ensure!(
                    wanted.takes.can_be_filled(rule.fill),
                    "--fill: the nulls of `{}` cannot be filled: only features, and labels by a number, can",
                    wanted.name
                );
                wanted.fill = Some(match rule.fill {
                    Fill::Value(value) => value,
                    Fill::Mean => *means.get(&wanted.name).context("a mean that is not known")?,
                });
            }
            ensure!(
                found || named.is_none(),
                "--fill names the column `{}`, which the model does not read",
                named.unwrap_or_default()
            );
        }
        Ok(self)
    }

    /// The same with documents that are cut and padded instead of packed.
    pub fn unpacked(mut self) -> Self {
        for wanted in &mut self.wanted {
            if let Takes::PackedTokens { length, vocab, pad } = wanted.takes {
                wanted.takes = Takes::RaggedTokens { length: length + 1, vocab, pad };
            }
        }
        self
    }

    /// The columns as a checkpoint keeps them: by name, with what stands for nulls.
    pub fn describe(&self) -> Vec<String> {
        let text = |wanted: &Wanted| match wanted.fill {
            Some(fill) => format!("{} (null = {fill})", wanted.name),
            None => wanted.name.clone(),
        };
        self.wanted.iter().map(text).collect()
    }

    /// The columns of numbers that the rules fill by their mean.
    pub fn means_wanted(&self, rules: &[FillRule]) -> Vec<&str> {
        let is_mean = |wanted: &&Wanted| {
            let mut own = rules.iter().filter(|rule| wanted.follows(rule, rules));
            wanted.takes.can_be_filled(Fill::Mean) && own.any(|rule| rule.fill == Fill::Mean)
        };
        self.wanted.iter().filter(is_mean).map(|wanted| wanted.name.as_str()).collect()
    }

    /// Refuses a dataset whose columns are missing or are not what the model takes.
    pub fn check(&self, schema: &Schema, uri: &str) -> Result<()> {
        for wanted in &self.wanted {
            let kind = kind_of(schema, &wanted.name, uri)?;
            let Some(expected) = wanted.takes.mismatch(kind) else { continue };
            let Wanted { name, flag, .. } = wanted;
            bail!("column `{name}` of {uri} is {}, but {expected}: choose another {flag}", shape(kind));
        }
        Ok(())
    }
}

impl Wanted {
    /// Whether it is this rule that says what stands for its nulls.
    fn follows(&self, rule: &FillRule, rules: &[FillRule]) -> bool {
        let is_own = |rule: &FillRule| rule.column.as_ref() == Some(&self.name);
        is_own(rule) || rule.column.is_none() && self.role == Role::Features && !rules.iter().any(is_own)
    }
}

impl Takes {
    fn can_be_filled(&self, fill: Fill) -> bool {
        match self {
            Self::Numbers | Self::Number => true,
            Self::Class { .. } => matches!(fill, Fill::Value(class) if class.fract() == 0.0),
            _ => false,
        }
    }

    /// What was expected, if `kind` is something else.
    fn mismatch(&self, kind: &DataType) -> Option<String> {
        match self {
            Self::Bytes { length } => {
                let fits = matches!(kind, DataType::FixedSizeList(item, size)
                    if *item.data_type() == DataType::UInt8 && i64::from(*size) == *length);
                let side = length.isqrt();
                (!fits).then(|| format!("the convnet takes images as UInt8[{length}] ({side} x {side})"))
            }
            Self::Class { .. } => {
                (!kind.is_integer()).then(|| "labels are one integer each, such as Int64".to_owned())
            }
            Self::Image(image) => {
                let fits = match (kind, image.source) {
                    (DataType::Binary | DataType::LargeBinary, ImageSource::Encoded) => true,
                    (DataType::FixedSizeList(item, size), ImageSource::Raw(raw)) => {
                        *item.data_type() == DataType::UInt8 && i64::from(*size) == raw.bytes()
                    }
                    _ => false,
                };
                (!fits).then(|| "images are JPEG or PNG files in Binary, or pixels in UInt8[..]".to_owned())
            }
            Self::Number => {
                (!is_number(kind)).then(|| "with --task regression labels are one number each".to_owned())
            }
            Self::Numbers => numbers(kind).is_none().then(|| {
                "the mlp takes numbers and times, or lists of them of a fixed length, such as Float32[16]"
                    .to_owned()
            }),
            Self::Tokens { length, .. } => {
                let fits = matches!(kind, DataType::FixedSizeList(item, size)
                    if item.data_type().is_integer() && i64::from(*size) == *length);
                (!fits).then(|| {
                    format!(
                        "the gpt takes tokens as integers, such as Int32[{length}] with --context {}",
                        length - 1
                    )
                })
            }
            Self::RaggedTokens { .. } | Self::PackedTokens { .. } => {
                let fits = matches!(kind, DataType::List(item) | DataType::LargeList(item)
                    if item.data_type().is_integer());
                (!fits).then(|| "the gpt takes tokens as lists of integers, such as List<Int32>".to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Field;

    fn check(image: DataType, label: DataType) -> String {
        let pixels = Takes::Bytes { length: 784 };
        let columns = Columns::default().with(Role::Image, "image", "--image-column", pixels).with(
            Role::Label,
            "label",
            "--label-column",
            Takes::Class { classes: 10 },
        );
        let schema = Schema::new(vec![Field::new("image", image, true), Field::new("label", label, true)]);
        columns.check(&schema, "s3://b/d").err().map(|error| error.to_string()).unwrap_or_default()
    }

    fn bytes(size: i32) -> DataType {
        DataType::new_fixed_size_list(DataType::UInt8, size, true)
    }

    #[test]
    fn types_are_checked_and_both_shapes_are_named() {
        for label in [DataType::Int64, DataType::UInt8, DataType::Int32] {
            assert_eq!(check(bytes(784), label), "");
        }
        let error = check(bytes(100), DataType::Int64);
        assert!(
            error.starts_with("column `image` of s3://b/d is UInt8[100], but the convnet takes"),
            "{error}"
        );
        assert!(error.contains("UInt8[784] (28 x 28): choose another --image-column"), "{error}");
        assert!(check(DataType::Utf8, DataType::Int64).contains("is Utf8, but"));
        let floats = DataType::new_fixed_size_list(DataType::Float32, 784, true);
        assert!(check(floats, DataType::Int64).contains("is Float32[784], but"));
        let error = check(bytes(784), bytes(2));
        assert!(
            error.contains("`label` of s3://b/d is UInt8[2], but labels are one integer each"),
            "{error}"
        );
    }

    #[test]
    fn a_column_that_is_missing_is_refused() {
        let schema =
            Schema::new(vec![Field::new("a", DataType::Int64, true), Field::new("b", bytes(784), true)]);
        let class = Takes::Class { classes: 2 };
        let columns = |name| Columns::default().with(Role::Label, name, "--label-column", class.clone());
        let missing = columns("image").check(&schema, "s3://b/d").unwrap_err().to_string();
        assert_eq!(missing, "s3://b/d has no column `image`: there are a, b");
    }
}
