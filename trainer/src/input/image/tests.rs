use super::*;
use arrow::datatypes::Field;
use clap::Parser;
use forebay_images::ImageSource;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    image: ImageArgs,
}

fn args(line: &str) -> ImageArgs {
    Line::try_parse_from(format!("test {line}").split_whitespace()).unwrap().image
}

fn resolved(line: &str, kind: DataType) -> Result<ImageSettings> {
    super::resolve(&args(line), "x", &Schema::new(vec![Field::new("x", kind, true)]), "s3://b/d")
}

fn bytes(length: i32) -> DataType {
    DataType::new_fixed_size_list(DataType::UInt8, length, true)
}

#[test]
fn flags_say_what_images_become() {
    let planar = resolved("--image-shape 3x4x8 --image-size 8 --grey --augment shift", bytes(96)).unwrap();
    let raw = Raw { height: 4, width: 8, channels: 3, planar: true };
    assert_eq!((planar.source, planar.size, planar.channels), (ImageSource::Raw(raw), 8, 1));
    for augment in [Augment::Crop, Augment::Shift, Augment::Flip, Augment::None] {
        assert_eq!(args(&format!("--augment {augment}")).augment, augment);
    }
    assert_eq!(args("").augment, Augment::Crop);
}

#[test]
fn a_shape_that_does_not_fit_is_refused_by_both_names() {
    let refused = |line: &str, kind| resolved(line, kind).unwrap_err().to_string();
    assert!(refused("", DataType::Utf8).contains("is Utf8, but images are encoded files"));
    assert!(refused("", bytes(95)).contains("UInt8[95], which is no square of pixels"));
    let both = refused("--image-shape 4x8x3", bytes(95));
    assert!(both.contains("is UInt8[95], but images of --image-shape 4x8x3 are UInt8[96]"), "{both}");
    assert!(refused("--image-shape 4x8x3", DataType::Binary).contains("is for raw pixels"));
    for wrong in ["4x8x2", "4", "0x4x3", "axb", "4x8x3x1"] {
        assert!(raw(wrong).is_err(), "{wrong}");
    }
    for (line, expected) in [
        ("--crop-share 0", "--crop-share must be above 0"),
        ("--image-size 0", "--image-size must be from 1"),
        ("--decode-threads 0", "--decode-threads must be at least 1"),
    ] {
        assert!(args(line).check().unwrap_err().to_string().starts_with(expected));
    }
}

#[test]
fn one_number_of_each_for_each_channel() {
    assert_eq!(Normalise::of(&args(""), 3).unwrap().std[2], 0.225);
    assert_eq!(Normalise::of(&args(""), 1).unwrap().mean, [0.5]);
    assert_eq!(Normalise::of(&args("--image-mean 0.1"), 1).unwrap().mean, [0.1]);
    let error = Normalise::of(&args("--image-mean 0.1,0.2"), 3).unwrap_err().to_string();
    assert_eq!(error, "--image-mean has 2 numbers, but the images have 3 channels");
    assert!(Normalise::of(&args("--image-std 0"), 1).is_err());
}
