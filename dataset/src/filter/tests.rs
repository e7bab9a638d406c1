//! Filters against plain evaluations.

use super::{Facts, Filter, Nulls};
use arrow::array::*;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use std::sync::Arc;

fn schema() -> Schema {
    let seconds = |zone: Option<&str>| DataType::Timestamp(TimeUnit::Second, zone.map(Into::into));
    let field = |(name, data_type): (&str, DataType)| Field::new(name, data_type, true);
    let fields = [
        ("i", DataType::Int64),
        ("small", DataType::Int8),
        ("u", DataType::UInt64),
        ("f", DataType::Float64),
        ("f32", DataType::Float32),
        ("t", DataType::Utf8),
        ("b", DataType::Boolean),
        ("d", DataType::Date32),
        ("at", seconds(None)),
        ("utc", seconds(Some("UTC"))),
        ("money", DataType::Decimal128(9, 2)),
        ("l", DataType::new_list(DataType::Int64, true)),
        ("s", DataType::Struct(vec![Field::new("x", DataType::Int64, true)].into())),
        ("bytes", DataType::Binary),
        ("ID", DataType::Int64),
        ("id", DataType::Int64),
        ("or", DataType::Int64),
        ("price", DataType::Float64),
    ];
    Schema::new(fields.map(field).to_vec())
}

fn normal(text: &str) -> String {
    let bind = |text: &str| Filter::parse(text).and_then(|filter| filter.bind(&schema()));
    let normal = bind(text).unwrap_or_else(|e| panic!("{text}: {e}")).text;
    assert_eq!(bind(&normal).unwrap_or_else(|e| panic!("{normal}: {e}")).text, normal, "of {text}");
    normal
}

fn fault(text: &str) -> String {
    match Filter::parse(text).and_then(|filter| filter.bind(&schema())) {
        Ok(predicate) => panic!("{text} is {}", predicate.text),
        Err(e) => e.message,
    }
}

#[test]
fn a_filter_has_one_normal_form() {
    for (text, wanted) in [
        ("i>3", "i > 3"),
        ("3 < i", "i > 3"),
        ("i == +3.0", "i = 3"),
        ("i <> -0", "i != 0"),
        ("f > 1.50e1", "f > 15"),
        ("f > .5 AND i = 1 and f > 0.5", "f > 0.5 and i = 1"),
        ("i = 1 or (i = 2 or (i = 3))", "i = 1 or i = 2 or i = 3"),
        ("t = \"ch\" and (i = 1 or b)", "(b = true or i = 1) and t = 'ch'"),
        ("i = 1 and t = 'a' or b", "(i = 1 and t = 'a') or b = true"),
        ("t = 'it''s'", "t = 'it''s'"),
        ("i in (2, 1, 2)", "i = 1 or i = 2"),
        ("i not in (7)", "not (i = 7)"),
        ("i between 1 and 5 and b", "b = true and i <= 5 and i >= 1"),
        ("not not (i = 1 and b)", "b = true and i = 1"),
        ("not not not i is null", "not (i is null)"),
        ("not (i is not null) and not i not in (7, 8)", "(i = 7 or i = 8) and i is null"),
        ("i is not null", "not (i is null)"),
        ("t like 'ab%'", "t like 'ab%'"),
        ("d >= '2024-01-31'", "d >= date '2024-01-31'"),
        ("d = date '2024-01-31'", "d = date '2024-01-31'"),
        ("at < '2024-01-31'", "at < timestamp '2024-01-31T00:00:00'"),
        ("at < date '2024-01-31'", "at < timestamp '2024-01-31T00:00:00'"),
        ("utc = '2024-01-31 12:30+01:00'", "utc = timestamp '2024-01-31T11:30:00Z'"),
        ("utc = '2024-01-31T12:30:00.25'", "utc = timestamp '2024-01-31T12:30:00.250Z'"),
        ("`or` = 1 and `id` = 2", "`id` = 2 and `or` = 1"),
        ("money > 3.50", "money > 3.5"),
        ("f > 1e300", "f > 1e300"),
        ("f > 123456789e-10", "f > 0.0123456789"),
        ("f > 12e-60", "f > 12e-60"),
    ] {
        assert_eq!(normal(text), wanted, "{text}");
    }
}

#[test]
fn faults_say_where_and_what_to_do() {
    for (text, says) in [
        ("", "it is empty"),
        ("i >", "it ends where a value is expected (at character 4)"),
        ("i > 3 b", "`b` stands where `and`, `or` or the end is expected (at character 7)"),
        ("(i > 3", "where `)`, `and` or `or` is expected"),
        ("i > 3)", "`)` stands where"),
        ("t = 'ch", "the ' is not closed (at character 5)"),
        ("i ; 3", "`;` has no meaning here (at character 3)"),
        ("ü > 3", "no column 'ü'"),
        ("prise > 3", "no column 'prise': did you mean 'price'? (at character 1)"),
        ("i = 1 and nothing_like_it > 3", "there are i, small, u"),
        ("lower(t) = 'x'", "`lower` is a function"),
        ("i > f", "two columns are compared"),
        ("t = ch", "a text stands in quotes"),
        ("i = null", "write `i is null`"),
        ("i like 'x%'", "'i' is Int64, no text"),
        ("t like '%x'", "as in 'abc%'"),
        ("i", "'i' is Int64, no boolean"),
        ("i = 'x'", "column 'i' is Int64 and cannot be compared with the text 'x'"),
        ("t = 7", "put it in quotes"),
        ("b > true", "has no order"),
        ("l = 1", "cannot be compared"),
        ("s.x = 1", "'s.x' lies in column 's'"),
        ("bytes = 'x'", "column 'bytes' is Binary and cannot be compared"),
        ("Id = 1", "columns 'ID' and 'id' differ in case only: write `ID` or `id`"),
        ("id = 1", "differ in case only"),
        ("d = '2024-02-30'", "'2024-02-30' is no date"),
        ("d = 5", "cannot be compared with the number 5"),
        ("at = '2024-01-31T00:00:00Z'", "leave the offset out"),
        ("at = 'soon'", "'soon' is no timestamp"),
        ("i not 3", "`in`, `between` or `like`"),
        ("i in ()", "a value is expected"),
        ("i > - t", "no number follows the `-`"),
        ("i > 1e999", "too large or too small"),
        ("i > 1e-2147483648", "too large or too small"),
        ("i > 1.5e-2147483648", "too large or too small"),
        ("i > 1e99999999999", "too large or too small"),
        ("i > 123456789012345678901234567890123456789", "more than 38 digits"),
    ] {
        let found = fault(text);
        assert!(found.contains(says), "{text}: {found}");
    }
    let deep = format!("{}i = 1{}", "(".repeat(51), ")".repeat(51));
    assert!(fault(&deep).contains("nested too deep"));
    assert!(fault(&"not ".repeat(100_000)).contains("bytes: use 16384 at most"));
    assert!(fault(&format!("{}i = 1", "not ".repeat(60))).contains("nested too deep"));
    assert!(fault(&vec!["i=1"; 501].join(" or ")).contains("too many comparisons"));
    assert!(!normal(&vec!["i=1"; 500].join(" or ")).is_empty());
}

/// All that open a manifest parse the normal form.
#[test]
fn the_longest_filters_have_a_normal_form_that_parses() {
    let values: Vec<String> = (1000..1499).map(|value| value.to_string()).collect();
    let list = format!("i not in ({}) or b", values.join(","));
    assert_eq!(normal(&list), normal(&normal(&list)));
    assert_eq!(normal(&list).matches(" or ").count(), 499, "b, and the values within `not`");
    // Each pair of words would be a level more than was written.
    assert_eq!(normal(&format!("{}i = 1", "not ".repeat(50))), "i = 1");
}

/// What a filter is for each of some values, as text: t, f or n.
fn outcomes(column: &str, values: ArrayRef, condition: &str) -> String {
    let schema = Schema::new(vec![Field::new(column, values.data_type().clone(), true)]);
    let predicate = Filter::parse(condition).and_then(|filter| filter.bind(&schema));
    let predicate = predicate.unwrap_or_else(|e| panic!("{condition}: {e}"));
    let found = predicate.evaluate(&[values]).unwrap();
    found.iter().map(|o| o.map_or('n', |o| if o { 't' } else { 'f' })).collect()
}

#[test]
fn values_are_compared_exactly() {
    let ints = || -> ArrayRef { Arc::new(Int64Array::from(vec![Some(2), Some(3), Some(4), None])) };
    for (condition, wanted) in [
        ("i > 3", "fftn"),
        ("i > 2.5", "fttn"),
        ("i <= 3.5", "ttfn"),
        ("i = 3.5", "fffn"),
        ("i != 3.5", "tttn"),
        ("i < 1e30", "tttn"),
        ("i > -1e30", "tttn"),
        ("i >= 1e30", "fffn"),
        ("i in (2, 4)", "tftn"),
        ("i not in (2, 4)", "ftfn"),
        ("i is null", "ffft"),
        ("i is null or i > 3", "fftt"),
        ("i is not null and not i > 3", "ttff"),
    ] {
        assert_eq!(outcomes("i", ints(), condition), wanted, "{condition}");
    }
    let most = || -> ArrayRef { Arc::new(UInt64Array::from(vec![0, u64::MAX - 1, u64::MAX])) };
    for (condition, wanted) in [
        ("u = 18446744073709551615", "fft"),
        ("u < 18446744073709551615", "ttf"),
        ("u > 18446744073709551616", "fff"),
        ("u > -1", "ttt"),
    ] {
        assert_eq!(outcomes("u", most(), condition), wanted, "{condition}");
    }
    let floats = [Some(f64::NAN), Some(-0.0), Some(0.0), Some(0.1), Some(f64::INFINITY), None];
    let floats = || -> ArrayRef { Arc::new(Float64Array::from(floats.to_vec())) };
    for (condition, wanted) in [
        ("f = 0", "fttffn"),
        ("f != 0", "tffttn"),
        ("f < 1", "ftttfn"),
        ("not f < 1", "tffftn"),
        ("f >= 0.1", "fffttn"),
    ] {
        assert_eq!(outcomes("f", floats(), condition), wanted, "{condition}");
    }
    let single: ArrayRef = Arc::new(Float32Array::from(vec![0.1, 0.5]));
    assert_eq!(outcomes("f", single.clone(), "f > 0.1"), "tt", "0.1f is more than 0.1");
    assert_eq!(outcomes("f", single, "f = 0.5"), "ft");
    let money = Decimal128Array::from(vec![349, 350, 351]).with_precision_and_scale(9, 2).unwrap();
    let money: ArrayRef = Arc::new(money);
    assert_eq!(outcomes("m", money.clone(), "m >= 3.5"), "ftt");
    assert_eq!(outcomes("m", money.clone(), "m > 3.499"), "ftt");
    assert_eq!(outcomes("m", money, "m = 3.505"), "fff");
    let at: ArrayRef = Arc::new(TimestampSecondArray::from(vec![-1, 0, 1]));
    assert_eq!(outcomes("at", at.clone(), "at >= '1970-01-01'"), "ftt");
    assert_eq!(outcomes("at", at, "at > '1969-12-31 23:59:59.5'"), "ftt");
    let texts: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("ab"), Some("b"), None, Some("a")]));
    assert_eq!(outcomes("t", texts.clone(), "t > 'a'"), "ttnf");
    assert_eq!(outcomes("t", texts, "t like 'a%'"), "tfnt");
    let nothing: ArrayRef = Arc::new(NullArray::new(2));
    assert_eq!(outcomes("x", nothing, "x > 3 or x is null"), "tt");
}

#[test]
fn statistics_rule_out_only_what_cannot_be() {
    let possible = |condition: &str, nulls, least: ArrayRef, most: ArrayRef| {
        let schema = Schema::new(vec![Field::new("x", least.data_type().clone(), true)]);
        let predicate = Filter::parse(condition).unwrap().bind(&schema).unwrap();
        let of = predicate.outcomes(&[Facts { nulls, bounds: Some((least, most)) }]);
        [(of.is_true, 't'), (of.is_false, 'f'), (of.is_null, 'n')]
            .iter()
            .filter(|o| o.0)
            .map(|o| o.1)
            .collect::<String>()
    };
    let ints = |condition, nulls| {
        let int = |i| -> ArrayRef { Arc::new(Int64Array::from(vec![i])) };
        possible(condition, nulls, int(3), int(7))
    };
    for (condition, wanted) in [
        ("x > 7", "f"),
        ("x > 2", "t"),
        ("x > 3", "tf"),
        ("x = 8", "f"),
        ("x = 5", "tf"),
        ("x != 8", "t"),
        ("not x > 7", "t"),
        ("x > 7 and x is null", "f"),
        ("x > 2 or x is null", "t"),
        ("x is null", "f"),
        ("x > 2.5", "t"),
        ("x > 1e30", "f"),
    ] {
        assert_eq!(ints(condition, Nulls::None), wanted, "{condition}");
    }
    assert_eq!((ints("x > 7", Nulls::Some), ints("x > 7", Nulls::All)), ("fn".into(), "n".into()));
    assert_eq!((ints("not x > 7", Nulls::Some), ints("x is null", Nulls::All)), ("tn".into(), "t".into()));
    let floats = |condition, least, most| {
        let float = |f| -> ArrayRef { Arc::new(Float64Array::from(vec![f])) };
        possible(condition, Nulls::None, float(least), float(most))
    };
    assert_eq!(floats("x > 2", 3.0, 7.0), "tf", "there may be NaN");
    assert_eq!((floats("x < 2", 3.0, 7.0), floats("x != 2", 2.0, 2.0)), ("f".into(), "tf".into()));
    assert_eq!(floats("x < 2", f64::NAN, f64::NAN), "tf");
    assert_eq!(floats("x = 0", -0.0, 0.0), "tf");
    let texts = |condition| {
        let text = |t: &str| -> ArrayRef { Arc::new(StringArray::from(vec![t])) };
        possible(condition, Nulls::None, text("abc"), text("abe"))
    };
    for (condition, wanted) in [
        ("x = 'abcdef'", "tf"),
        ("x = 'abf'", "f"),
        ("x like 'ab%'", "t"),
        ("x like 'abd%'", "tf"),
        ("x like 'b%'", "f"),
        ("x like 'aa%'", "f"),
        ("x like '%'", "t"),
    ] {
        assert_eq!(texts(condition), wanted, "{condition}");
    }
}
