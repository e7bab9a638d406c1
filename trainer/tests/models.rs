//! Each model as a user trains it: a small Parquet dataset made here, read without a cache.

use std::fs::File;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, FixedSizeListArray, Float64Array, Int32Array,
    Int64Array, ListArray, RecordBatch, StringArray, StructArray, UInt8Array, UInt16Array,
};
use arrow::datatypes::{DataType, Field, Fields, Int32Type};
use image::{ImageFormat, Rgb, RgbImage};
use parquet::arrow::ArrowWriter;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(180);

/// A dataset of one object, made again.
fn dataset(name: &str, columns: Vec<(&str, ArrayRef)>) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("models").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(folder.join("part-0.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    folder
}

fn list(values: ArrayRef, length: i32) -> ArrayRef {
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    Arc::new(FixedSizeListArray::new(item, length, values, None))
}

fn command(data: &Path, flags: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-train"));
    for variable in ["RANK", "WORLD_SIZE", "FOREBAY_ENDPOINT", "LD_LIBRARY_PATH"] {
        command.env_remove(variable);
    }
    command.args(["--direct", "--train", &format!("file://{}", data.display())]);
    command.args(flags.split_whitespace());
    command.stdin(Stdio::null());
    command
}

fn run(data: &Path, flags: &str) -> Output {
    command(data, flags).output().unwrap()
}

/// Trains, and gives the report.
fn train(name: &str, data: &Path, flags: &str) -> Value {
    let report = data.join(format!("{name}.json"));
    let output = run(data, &format!("{flags} --report {}", report.display()));
    assert!(output.status.success(), "{flags}: {}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let hashes = report["parameter_hashes"].as_array().unwrap();
    assert!(!hashes.is_empty() && hashes.iter().all(|hash| *hash == hashes[0]), "{report}");
    report
}

fn losses(report: &Value) -> Vec<f64> {
    report["epochs"].as_array().unwrap().iter().map(|epoch| epoch["loss"].as_f64().unwrap()).collect()
}

fn refused(data: &Path, flags: &str) -> String {
    let output = run(data, flags);
    assert!(!output.status.success(), "{flags} was accepted");
    let text = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<_> = text.lines().filter(|line| !line.contains("samples/s")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

/// Numbers that look random, the same everywhere.
fn noise(index: usize) -> usize {
    (index.wrapping_mul(2_654_435_761) >> 7) % 1009
}

#[test]
fn the_mlp_learns_tables() {
    let rows = 400;
    let a: Vec<f64> = (0..rows).map(|row| noise(row) as f64).collect();
    let b: Vec<i32> = (0..rows).map(|row| noise(row + 5000) as i32).collect();
    let pair: Vec<f64> = (0..2 * rows).map(|index| noise(index + 9000) as f64 / 1000.0).collect();
    let score = |row: usize| a[row] + 2.0 * f64::from(b[row]);
    let label: Vec<i64> = (0..rows).map(|row| i64::from(score(row) > 1500.0)).collect();
    let target: Vec<f64> = (0..rows).map(|row| score(row) / 1000.0).collect();
    let data = dataset(
        "table",
        vec![
            ("a", Arc::new(Float64Array::from(a.clone())) as ArrayRef),
            ("b", Arc::new(Int32Array::from(b.clone())) as ArrayRef),
            ("pair", list(Arc::new(Float64Array::from(pair)), 2)),
            ("label", Arc::new(Int64Array::from(label)) as ArrayRef),
            ("target", Arc::new(Float64Array::from(target)) as ArrayRef),
        ],
    );
    let uri = format!("file://{}", data.display());
    let flags = "--model mlp --feature-columns a,b,pair --batch 40 --optimizer adamw --lr 0.01 --epochs 5";
    let classes = train("classes", &data, &format!("{flags} --classes 2 --nproc 2 --test {uri}"));
    let loss = losses(&classes);
    assert!(loss[4] < 0.5 * loss[0], "{loss:?}");
    assert!(classes["test_accuracy"].as_f64().unwrap() > 0.85, "{classes}");
    let number = train(
        "number",
        &data,
        &format!(
            "{flags} --task regression --label-column target --schedule cosine --clip-norm 5 --test {uri}"
        ),
    );
    let loss = losses(&number);
    assert!(loss[4] < 0.3 * loss[0], "{loss:?}");
    assert_eq!(number["test"]["metric"], "squared_error");
    assert!(number["test"]["value"].as_f64().unwrap() < 0.3, "{number}");

    let error = refused(&data, "--model mlp --feature-columns a,label --label-column a");
    assert!(error.contains("--feature-columns and --label-column name the same column"), "{error}");
    let error = refused(&data, "--model mlp --feature-columns a,b --label-column target");
    assert!(error.contains("column `target` of") && error.contains("is Float64, but labels"), "{error}");
    let error = refused(&data, "--model gpt --token-column pair");
    assert!(
        error.contains("is Float64[2], but the gpt takes tokens as integers, such as Int32[2]"),
        "{error}"
    );
    let error = refused(&data, "--model mlp --feature-columns a,b --batch 4 --accumulate 4 --classes 2");
    assert!(error.contains("a pass of 1 rows is too small for the batch norms of the mlp"), "{error}");
}

#[test]
fn the_mlp_learns_a_table_with_nulls_and_dates() {
    let rows = 400;
    let amount = |row: usize| (!row.is_multiple_of(5)).then(|| noise(row) as f64);
    let day = |row: usize| 18_000 + (noise(row + 5000) % 365) as i32;
    let is_late = |row: usize| noise(row + 9000).is_multiple_of(2);
    // Two classes, of a null the smaller one.
    let label = |row: usize| i64::from(amount(row).unwrap_or(0.0) + f64::from(day(row) - 18_000) > 700.0);
    let data = dataset(
        "nullable",
        vec![
            ("amount", Arc::new(Float64Array::from_iter((0..rows).map(amount))) as ArrayRef),
            ("day", Arc::new(Date32Array::from_iter_values((0..rows).map(day)))),
            ("late", Arc::new(BooleanArray::from_iter((0..rows).map(is_late).map(Some)))),
            ("label", Arc::new(Int64Array::from_iter_values((0..rows).map(label)))),
        ],
    );
    let flags =
        "--model mlp --feature-columns amount,day,late --batch 40 --optimizer adamw --lr 0.01 --epochs 5";
    let uri = format!("file://{}", data.display());
    let zero = train("zero", &data, &format!("{flags} --fill 0 --nproc 2 --test {uri}"));
    let loss = losses(&zero);
    assert!(loss[4] < 0.6 * loss[0], "{loss:?}");
    assert!(zero["test_accuracy"].as_f64().unwrap() > 0.85, "{zero}");
    assert_eq!(zero["settings"]["model"]["outputs"], 2);
    let filled = |report: &Value| report["settings"]["columns"][0].as_str().unwrap().to_owned();
    assert_eq!(filled(&zero), "amount (null = 0)");

    // The mean is the same on any number of ranks, and part of what a checkpoint belongs to.
    let (sum, count) = (0..rows).filter_map(amount).fold((0.0, 0), |(sum, count), x| (sum + x, count + 1));
    let checkpoints = data.join("checkpoints");
    let _ = std::fs::remove_dir_all(&checkpoints);
    let kept = format!("{flags} --checkpoint-dir {}", checkpoints.display());
    let mean =
        train("mean", &data, &format!("{kept} --fill amount=mean --epochs 1").replacen("--epochs 5", "", 1));
    assert_eq!(filled(&mean), format!("amount (null = {})", sum / f64::from(count)));
    let resumed = train("resumed", &data, &format!("{kept} --fill amount=mean --nproc 2"));
    assert_eq!((resumed["resumed"]["step"].as_u64(), resumed["steps"].as_u64()), (Some(10), Some(50)));
    let error = refused(&data, &format!("{kept} --fill amount=1"));
    assert!(error.contains("(null = 1)"), "{error}");

    ctrl_c_loses_no_step(&data, &format!("{flags} --fill mean").replacen("--epochs 5", "--epochs 60", 1));
    let error = refused(&data, flags);
    let advice = "which have no place in a tensor: say what stands for them, as in --fill amount=0";
    assert!(
        error.contains(&format!("{uri}: column `amount` has nulls, the first in row"))
            && error.contains(advice),
        "{error}"
    );
    let error = refused(&data, &format!("{flags} --fill price=0"));
    assert!(error.contains("--fill names the column `price`, which the model does not read"), "{error}");
}

#[test]
fn the_gpt_learns_rows_of_any_length() {
    let rows = 240;
    let token = |row: usize, place: usize| ((1 + row % 3) * place + row) % 50;
    let text = |row: usize| (0..row % 24).map(move |place| Some(token(row, place) as i32));
    let texts = ListArray::from_iter_primitive::<Int32Type, _, _>((0..rows).map(|row| Some(text(row))));
    let cut = |row: usize| (0..17).map(move |place| token(row, place) as u16);
    let whole = UInt16Array::from_iter_values((0..rows).flat_map(cut));
    let data = dataset(
        "ragged",
        vec![("tokens", Arc::new(texts) as ArrayRef), ("whole", list(Arc::new(whole), 17))],
    );
    let flags = "--model gpt --vocab 50 --context 16 --layers 2 --heads 2 --width 32 --batch 24 --optimizer adamw \
                 --lr 0.01 --schedule cosine --warmup-steps 5 --epochs 3";
    let uri = format!("file://{}", data.display());
    let ragged = train("ragged", &data, &format!("{flags} --test {uri}"));
    let loss = losses(&ragged);
    assert!(loss[0] < 4.0 && loss[2] < 0.85 * loss[0], "{loss:?}");
    // What stands behind a row's end changes nothing, nor does the number of ranks but for rounding.
    let other = train("other", &data, &format!("{flags} --pad-token 49 --nproc 2"));
    for (a, b) in loss.iter().zip(losses(&other)) {
        assert!((a - b).abs() < 0.02 * a, "{loss:?} against {:?}", losses(&other));
    }
    assert_eq!(ragged["settings"]["model"]["pad_token"], 0);

    let error = refused(&data, "--model gpt --vocab 50 --width 32");
    assert!(error.contains("the rows of column `tokens`") && error.contains("say --context N"), "{error}");
    let error = refused(&data, "--model gpt --vocab 50 --context 16 --pad-token 50");
    assert!(error.contains("--pad-token 50 is no token: --vocab 50 ends at 49"), "{error}");
}

#[test]
fn the_gpt_learns_tokens() {
    let (rows, length) = (240, 17);
    // Each row counts on in steps of its own.
    let token = |row: usize, place: usize| ((1 + row % 3) * place + row) % 50;
    let all = || (0..rows).flat_map(move |row| (0..length).map(move |place| token(row, place)));
    let data = dataset(
        "tokens",
        vec![
            ("tokens", list(Arc::new(UInt16Array::from_iter_values(all().map(|t| t as u16))), length as i32)),
            ("wide", list(Arc::new(Int32Array::from_iter_values(all().map(|t| t as i32))), length as i32)),
        ],
    );
    let flags = "--model gpt --vocab 50 --layers 2 --heads 2 --width 32 --batch 24 --optimizer adamw --lr 0.01 \
                 --schedule cosine --warmup-steps 5 --epochs 3";
    let uri = format!("file://{}", data.display());
    let whole = train("whole", &data, &format!("{flags} --test {uri}"));
    let loss = losses(&whole);
    assert!(loss[0] < 4.0 && loss[2] < 0.85 * loss[0], "{loss:?}");
    let perplexity = whole["test"]["value"].as_f64().unwrap();
    assert!((perplexity.ln() - whole["test"]["loss"].as_f64().unwrap()).abs() < 1e-9);

    // Two ranks, other integers, and passes: the same training but for rounding.
    let shared = train("shared", &data, &format!("{flags} --token-column wide --accumulate 3 --nproc 2"));
    for (a, b) in loss.iter().zip(losses(&shared)) {
        assert!((a - b).abs() < 0.02 * a, "{loss:?} against {:?}", losses(&shared));
    }
    let half = train("half", &data, &format!("{flags} --precision bf16").replace("--epochs 3", "--epochs 2"));
    assert!(losses(&half)[1] < 0.98 * losses(&half)[0] && losses(&half)[0] != loss[0], "{half}");

    let auto = train("auto", &data, &format!("{flags} --batch auto --nproc 2").replace("--batch 24", ""));
    let batch = auto["global_batch"].as_u64().unwrap();
    assert!(batch.is_power_of_two() && (2..=240).contains(&batch), "{auto}");

    let error = refused(&data, "--model gpt --vocab 50 --context 31");
    assert!(
        error.contains("is UInt16[17], but the gpt takes tokens as integers, such as Int32[32]"),
        "{error}"
    );
    let error = refused(&data, "--model gpt --vocab 49 --width 32");
    assert!(error.contains("column `tokens` holds the token 49, but --vocab 49 ends at 48"), "{error}");
    let error = refused(&data, "--model gpt --width 30 --heads 4");
    assert!(error.contains("--width 30 cannot be shared evenly by 4 --heads"), "{error}");
}

/// A picture whose class is its colour.
fn picture(index: usize, side: u32) -> RgbImage {
    RgbImage::from_fn(side, side, |x, y| {
        let grain = noise(index * 4096 + (y * side + x) as usize) as u8 / 4;
        let mut pixel = [grain; 3];
        pixel[index % 3] = 160 + grain;
        Rgb(pixel)
    })
}

fn file(picture: &RgbImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    picture.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

#[test]
fn the_resnet_learns_images_from_files_and_from_pixels() {
    let rows = 48;
    let label: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|row| row % 3)));
    let format = |row: usize| if row.is_multiple_of(2) { ImageFormat::Jpeg } else { ImageFormat::Png };
    let mut files: Vec<_> = (0..rows).map(|row| file(&picture(row, 40), format(row))).collect();
    let pixels = (0..rows).flat_map(|row| picture(row, 32).into_raw());
    let data = dataset(
        "images",
        vec![
            ("image", Arc::new(BinaryArray::from_iter_values(&files)) as ArrayRef),
            ("pixels", list(Arc::new(UInt8Array::from_iter_values(pixels)), 32 * 32 * 3)),
            ("label", label.clone()),
        ],
    );
    let flags = "--model resnet18 --classes 3 --batch 12 --optimizer adam --lr 0.002 --epochs 3";
    let from_files = train("files", &data, &format!("{flags} --image-size 32 --nproc 2 --decode-threads 2"));
    let loss = losses(&from_files);
    assert!(loss[2] < 0.9 * loss[0], "{loss:?}");
    let from_pixels = train("pixels", &data, &format!("{flags} --image-column pixels --augment shift"));
    let loss = losses(&from_pixels);
    assert!(loss[2] < 0.9 * loss[0], "{loss:?}");

    // The deep one: two steps of it.
    let deep =
        "--model resnet50 --classes 3 --image-column pixels --split 0:16 --batch 8 --epochs 1 --nproc 2";
    let deep = train("deep", &data, &format!("{deep} --test file://{} --test-split 0:4", data.display()));
    assert_eq!(
        (deep["steps"].as_u64(), deep["settings"]["model"]["depth"].as_str()),
        (Some(2), Some("resnet50"))
    );
    assert!(losses(&deep)[0] > 0.1 && deep["test"]["samples"] == 4, "{deep}");

    a_checkpoint_is_of_what_was_trained_on(&data, flags);

    let error = refused(&data, "--model convnet");
    assert!(error.contains("is Binary, but the convnet takes images as UInt8[784] (28 x 28)"), "{error}");
    let error = refused(&data, "--model resnet18 --image-column label --label-column pixels");
    assert!(error.contains("is Int64, but images are encoded files"), "{error}");
    let error = refused(&data, "--model resnet18 --classes 2 --image-size 32 --batch 24 --epochs 1");
    assert!(
        error.contains("column `label` holds the label 2, but the model's classes are 0 to 1"),
        "{error}"
    );

    let cut = files[7].len() / 2;
    files[7].truncate(cut);
    let files: ArrayRef = Arc::new(BinaryArray::from_iter_values(&files));
    let damaged = dataset("damaged", vec![("image", files), ("label", label)]);
    let error = refused(&damaged, "--model resnet18 --classes 3 --image-size 32 --batch 48 --epochs 1");
    assert!(error.contains("column `image`, sample 7: the image is damaged"), "{error}");
}

#[test]
fn images_in_structs_as_hugging_face_writes_them_are_learnt() {
    let rows = 48;
    let files: Vec<_> = (0..rows).map(|row| file(&picture(row, 40), ImageFormat::Jpeg)).collect();
    let fields = Fields::from(vec![
        Field::new("bytes", DataType::Binary, true),
        Field::new("path", DataType::Utf8, true),
    ]);
    let names = StringArray::from_iter_values((0..rows).map(|row| format!("{row}.jpg")));
    let image = StructArray::new(
        fields,
        vec![Arc::new(BinaryArray::from_iter_values(&files)), Arc::new(names)],
        None,
    );
    let label: ArrayRef = Arc::new(Int64Array::from_iter_values((0..rows as i64).map(|row| row % 3)));
    let data = dataset("structs", vec![("image", Arc::new(image) as ArrayRef), ("label", label)]);
    let flags = "--model resnet18 --image-size 32 --batch 12 --optimizer adam --lr 0.002";
    // The classes are counted. The column by its name, or its field by a path, are the same.
    let named = train("named", &data, &format!("{flags} --epochs 3"));
    let loss = losses(&named);
    assert!(loss[2] < 0.9 * loss[0], "{loss:?}");
    assert_eq!(named["settings"]["model"]["classes"], 3);
    let by_path = train("path", &data, &format!("{flags} --epochs 3 --image-column image.bytes"));
    assert_eq!(losses(&by_path), losses(&named));
    ctrl_c_loses_no_step(&data, &format!("{flags} --epochs 4"));
    let error = refused(&data, &format!("{flags} --image-column image.file"));
    assert!(error.contains("no column `image.file`: in `image` there are bytes, path"), "{error}");
}

/// A run that is stopped by Ctrl-C and started again comes to the parameters of one that is not: it has taken
/// each step, and none twice.
fn ctrl_c_loses_no_step(data: &Path, flags: &str) {
    let straight = train("uninterrupted", data, flags);
    let (checkpoints, report) = (data.join("interrupted"), data.join("interrupted.json"));
    let _ = std::fs::remove_dir_all(&checkpoints);
    let kept = format!("{flags} --checkpoint-every 2 --checkpoint-dir {}", checkpoints.display());
    let mut stopped = command(data, &format!("{kept} --report {}", report.display()));
    let mut stopped = stopped.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    let is_under_way = || {
        std::fs::read_dir(&checkpoints).is_ok_and(|entries| {
            entries.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("step-"))
        })
    };
    while !is_under_way() {
        assert!(stopped.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE, "no checkpoint");
        sleep(Duration::from_millis(2));
    }
    let pid = i32::try_from(stopped.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let output = stopped.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let stopped: Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    assert_eq!(stopped["stopped"], true, "it was over before the signal came");
    let resumed = train("after-ctrl-c", data, &kept);
    assert_eq!(resumed["resumed"]["step"], stopped["steps"]);
    assert_eq!(resumed["steps"], straight["steps"]);
    assert_eq!(resumed["order_digest"], straight["order_digest"]);
    assert_eq!(resumed["parameter_hashes"], straight["parameter_hashes"]);
}

/// Inputs are made ahead of their step, and sent ahead: a run that resumes comes to the same parameters.
fn a_checkpoint_is_of_what_was_trained_on(data: &Path, flags: &str) {
    let checkpoints = data.join("checkpoints");
    let _ = std::fs::remove_dir_all(&checkpoints);
    let flags_kept = format!(
        "{flags} --image-column pixels --augment shift --device auto --checkpoint-every 1 --keep 20 --checkpoint-dir {}",
        checkpoints.display()
    );
    // No more than a batch or two is ready, so that inputs are made while the steps of the trace run.
    let flags_kept = format!("{flags_kept} --prefetch-bytes 100kB");
    let trace = data.join("trace.json");
    let straight =
        train("straight", data, &format!("{flags_kept} --profile {} --profile-steps 4", trace.display()));
    let text = std::fs::read_to_string(&trace).unwrap();
    assert!(serde_json::from_str::<Value>(&text).is_ok());
    for span in ["decode image", "make input", "stage", "snapshot", "write checkpoint"] {
        assert!(text.contains(&format!("\"{span}\"")), "no {span} in the trace");
    }
    for step in 7..=12 {
        std::fs::remove_dir_all(checkpoints.join(format!("step-{step:010}"))).unwrap();
    }
    let resumed = train("resumed", data, &flags_kept);
    assert_eq!((resumed["resumed"]["step"].as_u64(), resumed["steps"].as_u64()), (Some(6), Some(12)));
    assert_eq!(resumed["parameter_hashes"], straight["parameter_hashes"]);
    assert_eq!(resumed["order_digest"], straight["order_digest"]);
}
