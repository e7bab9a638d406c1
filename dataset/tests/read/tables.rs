//! Tables as real writers leave them: schemas that grow, directories that are columns, odd names.

use crate::given::{Dir, write};
use arrow::array::*;
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type};
use forebay_dataset::{Frozen, SegmentReader, Selection, SourceSettings, Urgency, View};
use forebay_proto::manifest::Object;
use forebay_proto::{Kind, Manifest, v1};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use std::sync::Arc;

fn source() -> SegmentReader {
    SegmentReader::new(SourceSettings::default()).unwrap()
}

fn put(dir: &Dir, name: &str, columns: &[(&str, ArrayRef)]) {
    let columns = columns.iter().map(|(name, column)| (*name, column.clone(), true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    write(&dir.path(name), &batch, 100, WriterProperties::builder());
}

fn longs(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

/// All rows and columns, read by nothing but the manifest.
async fn rows(frozen: &Frozen) -> RecordBatch {
    let manifest = Manifest::try_from(v1::Manifest::from(&frozen.manifest)).unwrap();
    let all: Vec<usize> = (0..frozen.schema.fields().len()).collect();
    let (reader, mut batches) = (source(), Vec::new());
    for segment in 0..manifest.segments().len() as u32 {
        let cost = reader.segment_cost(&manifest, segment, &all, &Urgency::demand()).await.unwrap();
        let batch = reader.read_segment(&manifest, segment, &all, &Urgency::demand()).await.unwrap();
        assert!(cost.decoded as usize >= batch.num_rows());
        batches.push(batch);
    }
    concat_batches(&frozen.schema, &batches).unwrap()
}

async fn refused(selection: &Selection) -> (Kind, String) {
    let e = source().freeze_again(selection, None).await.unwrap_err();
    (e.kind, e.message)
}

#[tokio::test]
async fn a_schema_that_grows_is_the_union_of_all() {
    let dir = Dir::new();
    put(&dir, "a.parquet", &[("id", Arc::new(Int32Array::from(vec![1, 2]))), ("x", longs(&[1, 2]))]);
    put(&dir, "b.parquet", &[("country", texts(&["ch"])), ("id", longs(&[1 << 40]))]);
    let frozen = source().freeze(&dir.uri(), 0).await.unwrap();
    let names: Vec<_> = frozen.schema.fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names, ["id", "x", "country"]);
    let read = rows(&frozen).await;
    assert_eq!(read.column(0).as_primitive::<Int64Type>().values(), &[1, 2, 1 << 40]);
    assert_eq!(read.column(1).as_ref(), &Int64Array::from(vec![Some(1), Some(2), None]));
    assert_eq!(read.column(2).as_ref(), &StringArray::from(vec![None, None, Some("ch")]));
    // The segments of an object that lacks columns are those of the object alone; those of another type not.
    let alone = async |name: &str| source().freeze(&format!("{}/{name}", dir.uri()), 0).await.unwrap();
    let ids = |frozen: &Arc<Frozen>| {
        let m = &frozen.manifest;
        (0..m.segments().len() as u32).map(|s| m.segment_id(s).unwrap()).collect::<Vec<_>>()
    };
    assert_ne!(ids(&frozen)[0], ids(&alone("a.parquet").await)[0]);
    assert_eq!(ids(&frozen)[1], ids(&alone("b.parquet").await)[0]);
    assert!(frozen.manifest.shape().is_some() && alone("a.parquet").await.manifest.shape().is_none());
}

#[tokio::test]
async fn columns_that_an_object_lacks_count_as_memory() {
    let (dir, n) = (Dir::new(), 200_000);
    let flags: ArrayRef = Arc::new(BooleanArray::from((0..n).map(|i| i % 2 == 0).collect::<Vec<_>>()));
    let narrow = RecordBatch::try_from_iter_with_nullable([("flag", flags, true)]).unwrap();
    write(&dir.path("a.parquet"), &narrow, n / 2, WriterProperties::builder());
    let field = |i: usize| (Arc::new(Field::new(format!("f{i}"), DataType::Utf8, true)), texts(&["x"]));
    let nested: ArrayRef = Arc::new(StructArray::from((0..100).map(field).collect::<Vec<_>>()));
    put(&dir, "b.parquet", &[("nested", nested), ("x", longs(&[1])), ("y", longs(&[2]))]);
    let frozen = source().freeze(&dir.uri(), 0).await.unwrap();
    let (m, all, demand) = (&frozen.manifest, [0, 1, 2, 3], Urgency::demand());
    // Its two row groups stay one segment, however wide the table is.
    let alone = source().freeze(&format!("{}/a.parquet", dir.uri()), 0).await.unwrap();
    assert_eq!(m.segment_id(0).unwrap(), alone.manifest.segment_id(0).unwrap());
    assert_eq!(m.segment(0).unwrap().row_groups, 2);

    let cost = source().segment_cost(m, 0, &all, &demand).await.unwrap();
    let read = source().read_segment(m, 0, &all, &demand).await.unwrap();
    assert!((1..4).all(|column| read.column(column).null_count() == n));
    let decoded = read.get_array_memory_size() as u64;
    assert!(cost.decoded.abs_diff(decoded) < 64 << 10, "{decoded} bytes, {cost:?} was said");
    // Nulls are made of nothing.
    assert!(cost.working < cost.decoded / 2, "{cost:?}");
    let own = source().segment_cost(m, 0, &[0], &demand).await.unwrap();
    assert!(own.total() < cost.decoded / 10, "{own:?}");
    let half = Selection { filter: "flag".into(), ..Selection::new(dir.uri(), 0) };
    let half = source().freeze_again(&half, None).await.unwrap();
    assert_eq!((half.manifest.segments().len(), half.manifest.rows()), (1, n as u64 / 2));
    let of_half = source().segment_cost(&half.manifest, 0, &all, &demand).await.unwrap();
    assert!(of_half.decoded >= cost.decoded / 2, "{of_half:?}");

    let tight = SourceSettings { segment_memory_bytes: cost.total() - 1, ..Default::default() };
    let e = SegmentReader::new(tight).unwrap().read_segment(m, 0, &all, &demand).await.unwrap_err();
    for part in ["/a.parquet: row groups 0..2", "--columns", "--segment-bytes", "smaller row groups"] {
        assert!(e.kind == Kind::Invalid && e.message.contains(part), "{e}");
    }
}

#[tokio::test]
async fn a_conflict_hurts_those_who_read_the_column() {
    let dir = Dir::new();
    put(&dir, "a.parquet", &[("id", longs(&[1])), ("x", longs(&[1]))]);
    put(&dir, "b.parquet", &[("id", longs(&[2])), ("x", texts(&["two"]))]);
    let open = async |selection: &Selection| {
        let frozen = source().freeze_again(selection, None).await.unwrap();
        let spec = v1::DatasetSpec { uri: dir.uri(), ..Default::default() };
        (View::of(&spec, vec![frozen.clone()]).unwrap(), frozen)
    };
    let mut selection = Selection::new(dir.uri(), 0);
    let (view, frozen) = open(&selection).await;
    assert_eq!(view.projection(&["id".into()]).unwrap(), [0]);
    assert_eq!(rows(&frozen).await.column(0).as_primitive::<Int64Type>().values(), &[1, 2]);
    for columns in [vec![], vec!["x".to_owned()]] {
        let message = view.projection(&columns).unwrap_err().message;
        for part in ["'x' is Int64 in", "a.parquet but Utf8 in", "b.parquet", "--schema-of"] {
            assert!(message.contains(part), "{message}");
        }
    }
    selection.schema_of = "b.parquet".into();
    assert!(open(&selection).await.0.projection(&[]).unwrap_err().message.contains("Int64 in"));
    selection.schema_of = "c.parquet".into();
    let (kind, message) = refused(&selection).await;
    assert!(kind == Kind::Invalid && message.contains("no object 'c.parquet'"), "{message}");
}

#[tokio::test]
async fn one_object_may_say_the_schema_of_all() {
    let dir = Dir::new();
    put(&dir, "a.parquet", &[("id", Arc::new(Int32Array::from(vec![1])))]);
    put(&dir, "b.parquet", &[("id", longs(&[2])), ("more", longs(&[3]))]);
    put(&dir, "c.parquet", &[("id", longs(&[1 << 40]))]);
    let selection = Selection { schema_of: "a.parquet".into(), ..Selection::new(dir.uri(), 0) };
    let frozen = source().freeze_again(&selection, None).await.unwrap();
    assert_eq!(frozen.schema.fields().len(), 1);
    assert_eq!(frozen.schema.field(0).data_type(), &DataType::Int32);
    let read =
        async |segment| source().read_segment(&frozen.manifest, segment, &[0], &Urgency::demand()).await;
    assert_eq!(read(1).await.unwrap().column(0).as_ref(), &Int32Array::from(vec![2]));
    let e = read(2).await.unwrap_err();
    assert!(e.kind == Kind::Invalid && e.message.contains("c.parquet: "), "{e}");
    assert!(e.message.contains("'id'") && e.message.contains("does not fit"), "{e}");
}

#[tokio::test]
async fn directories_are_columns_unless_they_are_not_wanted() {
    let dir = Dir::new();
    for (name, id) in [
        ("year=2024/city=Z%C3%BCrich/a.parquet", 1),
        ("year=2024/city=__HIVE_DEFAULT_PARTITION__/a.parquet", 2),
        ("year=2025/b.parquet", 3),
    ] {
        put(&dir, name, &[("id", longs(&[id]))]);
    }
    let frozen = source().freeze(&dir.uri(), 0).await.unwrap();
    let read = rows(&frozen).await;
    let column = |name: &str| read.column_by_name(name).unwrap().clone();
    assert_eq!(column("id").as_primitive::<Int64Type>().values(), &[1, 2, 3]);
    assert_eq!(column("year").as_ref(), &Int32Array::from(vec![2024, 2024, 2025]));
    assert_eq!(column("city").as_ref(), &StringArray::from(vec![Some("Zürich"), None, None]));
    let plain = Selection { no_partitions: true, ..Selection::new(dir.uri(), 0) };
    let plain = source().freeze_again(&plain, None).await.unwrap();
    assert_eq!((plain.schema.fields().len(), plain.manifest.shape()), (1, None));
}

/// The error of reading columns of a dataset, if there is one.
async fn objection(selection: &Selection, columns: &[String]) -> Option<String> {
    let frozen = source().freeze_again(selection, None).await.unwrap();
    let spec = v1::DatasetSpec { uri: selection.uri.clone(), ..Default::default() };
    View::of(&spec, vec![frozen]).unwrap().projection(columns).err().map(|e| e.message)
}

#[tokio::test]
async fn a_key_that_is_a_column_says_what_the_directories_say() {
    let dir = Dir::new();
    let selection = Selection::new(dir.uri(), 0);
    for (year, id) in [(2024, 1), (2025, 2)] {
        let columns = [("year", longs(&[year, year])), ("id", longs(&[id, id]))];
        put(&dir, &format!("year={year}/city=Z%C3%BCrich/a.parquet"), &columns);
    }
    let null: ArrayRef = Arc::new(StringArray::new_null(1));
    let (default, year) = ("year=02026/city=__HIVE_DEFAULT_PARTITION__/b.parquet", longs(&[2026]));
    put(&dir, default, &[("year", year.clone()), ("id", longs(&[3])), ("note", null.clone())]);
    put(&dir, "year=2026/none.parquet", &[("year", longs(&[])), ("id", longs(&[]))]);
    put(&dir, "elsewhere.parquet", &[("year", longs(&[7])), ("id", longs(&[4]))]);
    let frozen = source().freeze(&dir.uri(), 0).await.unwrap();
    let read = rows(&frozen).await;
    let years = read.column_by_name("year").unwrap();
    // Of one that lies in no such directory its own.
    assert_eq!(years.as_ref(), &Int64Array::from(vec![7, 2026, 2024, 2024, 2025, 2025]));
    assert_eq!(objection(&selection, &[]).await, None);

    for (odd, says) in [
        (longs(&[2026, 7]), "the directory says '2026', the column has values from '7' to '2026'"),
        (longs(&[7]), "the directory says '2026', the column has values from '7' to '7'"),
        (null.clone(), "the directory says '2026', the column has null"),
        (Arc::new(Int64Array::from(vec![Some(2026), None])), "to '2026' and maybe null"),
        (Arc::new(Float64Array::from(vec![2026.0])), "from '2026.0' to '2026.0'"),
        (texts(&["2O26"]), "from '2O26' to '2O26'"),
    ] {
        let dir = Dir::new();
        put(&dir, "year=2025/a.parquet", &[("year", odd.slice(0, 0)), ("id", longs(&[]))]);
        put(&dir, "year=2026/odd.parquet", &[("year", odd.clone()), ("id", longs(&vec![1; odd.len()]))]);
        let selection = Selection::new(dir.uri(), 0);
        let message = objection(&selection, &[]).await.expect("an objection");
        for part in
            [&dir.uri(), says, "'year' is a partition key", "/year=2026/odd.parquet", "--no-partitions"]
        {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(objection(&selection, &["year".into()]).await, Some(message));
        assert_eq!(objection(&selection, &["id".into()]).await, None);
        let filtered = Selection { filter: "year > 0".into(), ..selection.clone() };
        assert!(refused(&filtered).await.1.contains(says));
        let own = Selection { no_partitions: true, ..selection };
        assert_eq!(objection(&own, &[]).await, None);
        let own = rows(&source().freeze_again(&own, None).await.unwrap()).await;
        assert_eq!(own.column_by_name("year").unwrap().as_ref(), odd.as_ref());
    }
}

#[tokio::test]
async fn a_key_that_is_a_column_of_some_objects_only_is_refused() {
    let dir = Dir::new();
    put(&dir, "year=2024/a.parquet", &[("id", longs(&[1])), ("year", longs(&[2024]))]);
    put(&dir, "year=2025/b.parquet", &[("id", longs(&[2]))]);
    let message = objection(&Selection::new(dir.uri(), 0), &[]).await.expect("an objection");
    for part in
        ["column of ", "a.parquet, but ", "b.parquet has it in its directories only", "--no-partitions"]
    {
        assert!(message.contains(part), "{message}");
    }
    let own = Selection { no_partitions: true, ..Selection::new(dir.uri(), 0) };
    let own = rows(&source().freeze_again(&own, None).await.unwrap()).await;
    assert_eq!(own.column_by_name("year").unwrap().as_ref(), &Int64Array::from(vec![Some(2024), None]));
}

#[tokio::test]
async fn a_key_whose_values_no_footer_tells_is_refused() {
    let dir = Dir::new();
    let (id, year) = ("id", longs(&[2024]));
    let batch = RecordBatch::try_from_iter([(id, longs(&[1])), ("year", year)]).unwrap();
    let silent = WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None);
    write(&dir.path("year=2024/a.parquet"), &batch, 100, silent);
    let message = objection(&Selection::new(dir.uri(), 0), &[]).await.expect("an objection");
    assert!(message.contains("the footer does not tell the column's values"), "{message}");
}

#[tokio::test]
async fn names_that_count_and_notes_of_those_left_out() {
    let dir = Dir::new();
    for name in ["a.parquet", "B.PARQUET", "c.parq", "d.pq", "_temporary/e.parquet"] {
        put(&dir, name, &[("id", longs(&[1]))]);
    }
    put(&dir, "000000_0", &[("id", longs(&[1]))]);
    for name in ["_SUCCESS", "z.parquet", "readme"] {
        std::fs::write(dir.path(name), if name == "readme" { "no Parquet here" } else { "" }).unwrap();
    }
    let frozen = source().freeze(&dir.uri(), 0).await.unwrap();
    let keys: Vec<_> = frozen.manifest.objects().iter().map(|o| o.key.as_str()).collect();
    assert_eq!(keys, ["B.PARQUET", "a.parquet", "c.parq", "d.pq"]);
    assert!(frozen.left_out[0].contains("1 object without bytes (z.parquet)"), "{:?}", frozen.left_out);
    let star = source().freeze(&format!("{}/*.{{parq,pq}}", dir.uri()), 0).await.unwrap();
    assert_eq!(star.manifest.objects().len(), 2);
    assert_eq!(rows(&star).await.num_rows(), 2);

    for name in keys {
        std::fs::remove_file(dir.path(name)).unwrap();
    }
    let hive = source().freeze(&dir.uri(), 0).await.unwrap();
    assert_eq!(hive.manifest.objects()[0].key, "000000_0");
    std::fs::remove_file(dir.path("000000_0")).unwrap();
    let (kind, message) = refused(&Selection::new(dir.uri(), 0)).await;
    assert_eq!(kind, Kind::NotFound);
    for part in ["1 object of other kinds (readme)", "1 object without bytes", "2 objects with hidden names"]
    {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn objects_may_lie_below_the_root_of_the_file_system() {
    let dir = Dir::new();
    put(&dir, "year=2024/a.parquet", &[("id", longs(&[7, 8]))]);
    let path = dir.path("year=2024/a.parquet").canonicalize().unwrap();
    let key = path.to_str().unwrap().trim_start_matches('/').to_owned();
    let objects = vec![Object { key, ..Object::default() }];
    let root = Selection { objects, ..Selection::new("file:///", 0) };
    let frozen = source().freeze_again(&root, None).await.unwrap();
    let manifest = &frozen.manifest;
    assert_eq!(manifest.object_uri(&manifest.objects()[0]), format!("file://{}", path.display()));
    let read = rows(&frozen).await;
    assert_eq!(read.column(0).as_primitive::<Int64Type>().values(), &[7, 8]);
    assert_eq!(read.column(1).as_primitive::<Int32Type>().values(), &[2024, 2024]);
}

#[tokio::test]
async fn a_list_names_objects_and_may_name_their_versions() {
    let dir = Dir::new();
    for (name, id) in [("a.parquet", 1), ("b.parquet", 2), ("c.parquet", 3)] {
        put(&dir, name, &[("id", longs(&[id]))]);
    }
    let object = |key: &str| Object { key: key.into(), ..Default::default() };
    let uri = format!("{}/a.parquet", dir.uri());
    let objects = vec![object("c.parquet"), object(&uri)];
    let list = Selection { objects, ..Selection::new(dir.uri(), 0) };
    let frozen = source().freeze_again(&list, None).await.unwrap();
    assert_eq!(rows(&frozen).await.column(0).as_primitive::<Int64Type>().values(), &[3, 1]);
    let twice = Selection { objects: vec![object("a.parquet"); 2], ..list.clone() };
    assert!(refused(&twice).await.1.contains("names it twice"));
    let gone = Selection { objects: vec![object("gone.parquet")], ..list };
    assert_eq!(refused(&gone).await.0, Kind::NotFound);

    // Exactly a version that was, whatever came since.
    let whole = source().freeze(&dir.uri(), 0).await.unwrap();
    put(&dir, "d.parquet", &[("id", longs(&[4]))]);
    let objects = whole.manifest.objects().to_vec();
    let version = Selection { objects, ..Selection::new(dir.uri(), 0) };
    let again = source().freeze_again(&version, None).await.unwrap();
    assert_eq!(again.manifest, whole.manifest);
    put(&dir, "a.parquet", &[("id", longs(&[1, 2]))]);
    assert_eq!(refused(&version).await.0, Kind::Changed);
}

#[cfg(unix)]
#[tokio::test]
async fn a_name_that_is_no_text_is_named() {
    use std::os::unix::ffi::OsStrExt;
    let dir = Dir::new();
    put(&dir, "a.parquet", &[("id", longs(&[1]))]);
    std::fs::copy(dir.path("a.parquet"), dir.path("").join(std::ffi::OsStr::from_bytes(b"b\xff.parquet")))
        .unwrap();
    let (kind, message) = refused(&Selection::new(dir.uri(), 0)).await;
    assert_eq!(kind, Kind::Invalid, "{message}");
    assert!(message.contains("b\u{fffd}.parquet") || message.contains("b\\xFF.parquet"), "{message}");
    let (kind, message) = refused(&Selection::new(format!("{}/k=%FF/x.parquet", dir.uri()), 0)).await;
    assert_eq!(kind, Kind::NotFound, "{message}");
    let dir = Dir::new();
    put(&dir, "k=%FF/a.parquet", &[("id", longs(&[1]))]);
    let (kind, message) = refused(&Selection::new(dir.uri(), 0)).await;
    assert_eq!(kind, Kind::Invalid, "{message}");
    for part in ["k=%FF/a.parquet", "'%FF' is not UTF-8", "--no-partitions"] {
        assert!(message.contains(part), "{message}");
    }
}

#[tokio::test]
async fn columns_that_differ_in_case_only_are_two_and_told() {
    let dir = Dir::new();
    put(&dir, "a.parquet", &[("id", longs(&[1])), ("ID", longs(&[2]))]);
    put(&dir, "b.parquet", &[("Id", longs(&[3]))]);
    let frozen = source().freeze(&dir.uri(), 0).await.unwrap();
    let read = rows(&frozen).await;
    for (name, first) in [("id", Some(1)), ("ID", Some(2)), ("Id", None)] {
        let column = read.column_by_name(name).unwrap().as_primitive::<Int64Type>();
        assert_eq!(column.iter().next().unwrap(), first, "{name}");
    }
    let told = frozen.notes.join("; ");
    assert!(
        told.contains(&dir.uri()) && told.contains("'id' and 'ID' differ in case only: both are kept"),
        "{told}"
    );
    for part in ["/a.parquet, 'Id' as in ", "/b.parquet; name the", "--columns"] {
        assert!(told.contains(part), "{told}");
    }
    let filtered = Selection { filter: "iD = 1".into(), ..Selection::new(dir.uri(), 0) };
    let (kind, message) = refused(&filtered).await;
    assert!(kind == Kind::Invalid && message.contains("differ in case only"), "{message}");
}
