//! What a predicate can be for the rows of a row group, of which only statistics are known.
//!
//! An outcome that is left out is impossible. Others may be possible or not, so nothing here can change which
//! rows are left, only how many must be looked at.

use super::evaluate::compare;
use super::expression::Op;
use super::predicate::{Node, Predicate, Value};
use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};

/// The facts of a column's values in a row group.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub nulls: Nulls,
    /// Arrays of one value each, of the column's type: no value that is neither null nor NaN is less than the
    /// first or more than the second. None where that is not known.
    pub bounds: Option<(ArrayRef, ArrayRef)>,
}

impl Facts {
    /// Nothing is known.
    pub(crate) fn unknown() -> Self {
        Self { nulls: Nulls::Some, bounds: None }
    }
}

/// How many values of a column are null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nulls {
    None,
    Some,
    All,
}

/// Which outcomes a predicate may have for the rows of a row group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Outcomes {
    pub is_true: bool,
    pub is_false: bool,
    pub is_null: bool,
}

impl Outcomes {
    const ANY: Self = Self { is_true: true, is_false: true, is_null: true };

    fn or_null(is_true: bool, is_false: bool, nulls: Nulls) -> Self {
        match nulls {
            Nulls::All => Self { is_true: false, is_false: false, is_null: true },
            nulls => Self { is_true, is_false, is_null: nulls != Nulls::None },
        }
    }
}

impl Predicate {
    /// The outcomes that are possible. `facts` are of [`Predicate::columns`], in that order.
    pub(crate) fn outcomes(&self, facts: &[Facts]) -> Outcomes {
        self.root.outcomes(facts)
    }
}

impl Node {
    fn outcomes(&self, facts: &[Facts]) -> Outcomes {
        match self {
            Self::Unknown => Outcomes::ANY,
            Self::Compare { column, op, value } => match facts.get(*column) {
                Some(facts) => ordered(facts, *op, value),
                None => Outcomes::ANY,
            },
            Self::Always { column, outcome } => match facts.get(*column) {
                Some(facts) => Outcomes::or_null(*outcome, !*outcome, facts.nulls),
                None => Outcomes::ANY,
            },
            Self::IsNull { column } => {
                let nulls = facts.get(*column).map_or(Nulls::Some, |facts| facts.nulls);
                Outcomes { is_true: nulls != Nulls::None, is_false: nulls != Nulls::All, is_null: false }
            }
            Self::StartsWith { column, prefix } => match facts.get(*column) {
                Some(facts) => begun(facts, prefix),
                None => Outcomes::ANY,
            },
            Self::Not(part) => {
                let Outcomes { is_true, is_false, is_null } = part.outcomes(facts);
                Outcomes { is_true: is_false, is_false: is_true, is_null }
            }
            Self::And(parts) => {
                let parts: Vec<Outcomes> = parts.iter().map(|part| part.outcomes(facts)).collect();
                Outcomes {
                    is_true: parts.iter().all(|part| part.is_true),
                    is_false: parts.iter().any(|part| part.is_false),
                    is_null: parts.iter().any(|part| part.is_null)
                        && parts.iter().all(|part| part.is_null || part.is_true),
                }
            }
            Self::Or(parts) => {
                let parts: Vec<Outcomes> = parts.iter().map(|part| part.outcomes(facts)).collect();
                Outcomes {
                    is_true: parts.iter().any(|part| part.is_true),
                    is_false: parts.iter().all(|part| part.is_false),
                    is_null: parts.iter().any(|part| part.is_null)
                        && parts.iter().all(|part| part.is_null || part.is_false),
                }
            }
        }
    }
}

/// Of a comparison, which is true for all of a stretch or for its one end only.
fn ordered(facts: &Facts, op: Op, value: &Value) -> Outcomes {
    let any = Outcomes::or_null(true, true, facts.nulls);
    let Some((least, most)) = &facts.bounds else { return any };
    let is_float = matches!(value, Value::Float(_));
    if is_float && (is_nan(least) || is_nan(most)) {
        return any;
    }
    let holds = |bound: &ArrayRef, op| {
        let outcome = compare(bound, op, value).ok()?;
        (outcome.len() == 1 && outcome.is_valid(0)).then(|| outcome.value(0))
    };
    let both = |op| Some((holds(least, op)?, holds(most, op)?));
    let is_one = || both(Op::Eq).map(|(least, most)| least && most);
    let is_within = || Some(holds(least, Op::Le)? && holds(most, Op::Ge)?);
    let outcomes = match op {
        Op::Lt | Op::Le | Op::Gt | Op::Ge => both(op).map(|(a, b)| (a || b, !(a && b))),
        Op::Eq => is_within().zip(is_one()).map(|(within, one)| (within, !one)),
        Op::Ne => is_within().zip(is_one()).map(|(within, one)| (!one, within)),
    };
    // Statistics leave NaN out: it differs from everything, and no other comparison with it is true.
    let (is_true, is_false) = outcomes.unwrap_or((true, true));
    Outcomes::or_null(is_true || is_float && op == Op::Ne, is_false || is_float && op != Op::Ne, facts.nulls)
}

fn is_nan(bound: &ArrayRef) -> bool {
    let float = cast(bound, &DataType::Float64);
    let is_number = |bound: &ArrayRef| {
        let bound = bound.as_primitive_opt::<Float64Type>()?;
        (bound.len() == 1 && bound.is_valid(0)).then(|| !bound.value(0).is_nan())
    };
    !float.ok().and_then(|float| is_number(&float)).unwrap_or(false)
}

fn begun(facts: &Facts, prefix: &str) -> Outcomes {
    let text = |bound: &ArrayRef| {
        let bound = cast(bound, &DataType::LargeUtf8).ok()?;
        let bound = bound.as_string_opt::<i64>()?;
        (bound.len() == 1 && bound.is_valid(0)).then(|| bound.value(0).to_owned())
    };
    let bounds = facts.bounds.as_ref().and_then(|(least, most)| Some((text(least)?, text(most)?)));
    let (is_true, is_false) = match bounds {
        Some((least, most)) => (
            most.as_str() >= prefix && (least.as_str() < prefix || least.starts_with(prefix)),
            !(least.starts_with(prefix) && most.starts_with(prefix)),
        ),
        None => (true, true),
    };
    Outcomes::or_null(is_true, is_false, facts.nulls)
}
