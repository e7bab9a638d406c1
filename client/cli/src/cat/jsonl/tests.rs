use super::*;
use arrow::array::*;
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::*;
use serde_json::{Value, json};

/// Row 0 holds a value, row 1 a null.
fn lines(array: impl Array + 'static) -> (Value, Value) {
    let batch = RecordBatch::try_from_iter([("x", Arc::new(array) as ArrayRef)]).unwrap();
    assert_eq!(batch.num_rows(), 2);
    let mut out = Vec::new();
    let mut lines = Lines::new(&mut out);
    lines.write(&batch).unwrap();
    lines.close().unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(text.ends_with('\n'));
    let rows: Vec<Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let [first, second] = rows.as_slice() else { panic!("{text}") };
    (first["x"].clone(), second.get("x").expect("an explicit null").clone())
}

fn check(array: impl Array + 'static, want: Value) {
    let data_type = array.data_type().clone();
    assert_eq!(lines(array), (want, Value::Null), "{data_type}");
}

#[test]
fn flat_types() {
    check(BooleanArray::from(vec![Some(true), None]), json!(true));
    check(Int8Array::from(vec![Some(-8), None]), json!(-8));
    check(UInt64Array::from(vec![Some(u64::MAX), None]), json!(u64::MAX));
    check(Int64Array::from(vec![Some(i64::MIN), None]), json!(i64::MIN));
    check(Float32Array::from(vec![Some(1.5), None]), json!(1.5));
    check(Float64Array::from(vec![Some(f64::NAN), None]), Value::Null);
    check(StringArray::from(vec![Some("a\"\n\u{fc}"), None]), json!("a\"\n\u{fc}"));
    check(LargeStringArray::from(vec![Some(""), None]), json!(""));
    check(BinaryArray::from(vec![Some(&[0u8, 255][..]), None]), json!("00ff"));
    check(
        FixedSizeBinaryArray::try_from_sparse_iter_with_size([Some([1u8, 2]), None].into_iter(), 2).unwrap(),
        json!("0102"),
    );
    check(NullArray::new(2), Value::Null);
    let decimal = Decimal128Array::from(vec![Some(-12345), None]).with_precision_and_scale(10, 2).unwrap();
    let text = format!("{:?}", lines(decimal).0);
    assert!(text.contains("-123.45"), "{text}");
}

#[test]
fn times() {
    check(Date32Array::from(vec![Some(1), None]), json!("1970-01-02"));
    check(Time64MicrosecondArray::from(vec![Some(1_500_000), None]), json!("00:00:01.500"));
    check(TimestampMicrosecondArray::from(vec![Some(1_000_001), None]), json!("1970-01-01T00:00:01.000001"));
    for zone in ["UTC", "Europe/Berlin", "+02:00"] {
        let array = TimestampMillisecondArray::from(vec![Some(1500), None]).with_timezone(zone);
        check(array, json!("1970-01-01T00:00:01.500Z"));
    }
}

#[test]
fn nested_types() {
    let field = Arc::new(Field::new_list_field(DataType::Int32, true));
    let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), None]), None], 2);
    check(fixed, json!([1, null]));
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None]);
    check(list, json!([1, null]));
    let empty = ListArray::try_new(
        field,
        OffsetBuffer::new(vec![0, 0, 0].into()),
        Arc::new(Int32Array::new_null(0)),
        Some(vec![true, false].into()),
    );
    check(empty.unwrap(), json!([]));
    let zoned = TimestampSecondArray::from(vec![Some(0), None]).with_timezone("America/New_York");
    let field = Field::new("at", zoned.data_type().clone(), true);
    let inner = StructArray::new(vec![field].into(), vec![Arc::new(zoned)], Some(vec![true, false].into()));
    check(inner, json!({"at": "1970-01-01T00:00:00Z"}));
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    map.keys().append_value("k");
    map.values().append_null();
    map.append(true).unwrap();
    map.append(false).unwrap();
    check(map.finish(), json!({"k": null}));
    let dictionary: DictionaryArray<Int8Type> = [Some("a"), None].into_iter().collect();
    check(dictionary, json!("a"));
}
