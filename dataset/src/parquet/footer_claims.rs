//! What a footer and an index of pages claim, before the parquet crate takes memory and stack for it: that
//! reads a schema level by level within each other, and makes room for as many columns and pages as are said
//! to come.

use crate::parquet::thrift::{BINARY, BYTE, CompactReader, FALSE, I32, LIST, STRUCT, TRUE};
use parquet::file::FOOTER_SIZE;

/// Groups within groups, in a schema.
const DEPTH_MAX: usize = 64;

/// A page takes as many bytes of an offset index at least: three numbers with their heads, and an end.
const LOCATION_BYTES: u64 = 7;

/// Says why the Thrift bytes of a footer are not to be parsed, if its schema is nested too deeply or lacks
/// what it announces.
pub(crate) fn check_schema(metadata: &[u8]) -> Result<(), String> {
    let mut reader = CompactReader { bytes: metadata };
    let count = elements(&mut reader).ok_or("it does not begin with a schema")?;
    // The columns that each group lacks, of those that the next elements lie in; and those of all together.
    let (mut open, mut lacking) = (Vec::<u64>::new(), 1u64);
    for left in (0..count).rev() {
        let children = element(&mut reader).ok_or("its schema cannot be read")?;
        let others = lacking.checked_sub(1).ok_or("its schema has several roots")?;
        lacking = others.saturating_add(children);
        if lacking > left {
            return Err(format!("its schema announces {lacking} more columns where {left} follow"));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(group) = open.last_mut() {
            *group -= 1;
        }
        if children > 0 {
            open.push(children);
        }
        if open.len() > DEPTH_MAX {
            return Err(format!("its schema has more than {DEPTH_MAX} groups within each other"));
        }
    }
    Ok(())
}

/// As [`check_schema`], of a whole object. One that does not end as Parquet does is the parser's business.
pub(crate) fn check_object(object: &[u8]) -> Result<(), String> {
    let metadata = || {
        let (object, tail) = object.split_last_chunk::<FOOTER_SIZE>()?;
        let length = u32::from_le_bytes(*tail.first_chunk()?);
        object.get(object.len().checked_sub(usize::try_from(length).ok()?)?..)
    };
    metadata().map_or(Ok(()), check_schema)
}

/// Whether an offset index is large enough for the pages that it announces.
pub(super) fn has_its_pages(index: &[u8]) -> bool {
    let mut reader = CompactReader { bytes: index };
    let mut pages = || {
        let mut field = 0;
        let kind = reader.field(&mut field)??;
        let (element, count) = reader.list()?;
        let is_sound = (kind, field, element) == (LIST, 1, STRUCT);
        Some(is_sound && count <= reader.bytes.len() as u64 / LOCATION_BYTES)
    };
    pages().unwrap_or(false)
}

/// How many elements the schema of a footer has, which come next.
fn elements(reader: &mut CompactReader<'_>) -> Option<u64> {
    let mut field = 0;
    let kind = reader.field(&mut field)??;
    ((kind, field) == (I32, 1)).then_some(())?;
    reader.skip(kind)?;
    let kind = reader.field(&mut field)??;
    ((kind, field) == (LIST, 2)).then_some(())?;
    let (kind, count) = reader.list()?;
    (kind == STRUCT).then_some(count)
}

/// How many columns a group has; 0 if the next element of a schema is no group.
fn element(reader: &mut CompactReader<'_>) -> Option<u64> {
    let (mut children, mut field) = (0, 0);
    while let Some(kind) = reader.field(&mut field)? {
        match (field, kind) {
            (5, I32) => children = reader.count()?,
            (1..=3 | 6..=9, I32) | (4, BINARY) => reader.skip(kind)?,
            (10, STRUCT) => logical_type(reader)?,
            (1..=10, _) => return None,
            _ => reader.skip(kind)?,
        }
    }
    Some(children)
}

/// Passes over a logical type: a union of structs.
fn logical_type(reader: &mut CompactReader<'_>) -> Option<()> {
    let mut variant = 0;
    while let Some(kind) = reader.field(&mut variant)? {
        (kind == STRUCT).then_some(())?;
        let mut field = 0;
        while let Some(kind) = reader.field(&mut field)? {
            let is_known = match (variant, field) {
                (5, 1 | 2) | (18, 2) => kind == I32,
                (7 | 8, 1) | (10, 2) => matches!(kind, TRUE | FALSE),
                (7 | 8, 2) => kind == STRUCT,
                (10 | 16, 1) => kind == BYTE,
                (17 | 18, 1) => kind == BINARY,
                _ => true,
            };
            is_known.then_some(())?;
            match (variant, field) {
                (7 | 8, 2) => unit(reader)?,
                _ => reader.skip(kind)?,
            }
        }
    }
    Some(())
}

/// Passes over a unit of time: a union of structs without fields.
fn unit(reader: &mut CompactReader<'_>) -> Option<()> {
    let mut field = 0;
    while let Some(kind) = reader.field(&mut field)? {
        (kind == STRUCT).then_some(())?;
        reader.skip(kind)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parquet::footer::Footer;

    /// A footer that has only a schema, of elements of these numbers of children.
    fn footer(children: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0x15, 2, 0x19, 0xfc];
        varint(children.len() as u64, &mut bytes);
        for (i, children) in children.iter().enumerate() {
            // The name, and where there are any the number of children; all but the root are optional.
            if i > 0 {
                bytes.extend([0x35, 2, 0x18, 1, b'g']);
            } else {
                bytes.extend([0x48, 1, b'g']);
            }
            if *children > 0 {
                bytes.push(0x15);
                varint(u64::from(*children) << 1, &mut bytes);
            }
            bytes.push(0);
        }
        bytes
    }

    fn varint(mut value: u64, bytes: &mut Vec<u8>) {
        while value > 0x7f {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }

    /// Groups within each other, the innermost of them with a column.
    fn nested(groups: usize) -> Vec<u32> {
        let mut children = vec![1; groups];
        children.push(0);
        children
    }

    #[test]
    fn schemas_have_what_they_announce() {
        for sound in [vec![0], vec![1, 0], vec![2, 0, 2, 0, 0], vec![3, 0, 1, 0, 0], nested(64)] {
            assert_eq!(check_schema(&footer(&sound)), Ok(()), "{sound:?}");
        }
        for (bad, why) in [
            (vec![1], "1 more columns where 0 follow"),
            (vec![0x7fff_ffff, 0], "2147483647 more columns where 1 follow"),
            (vec![1, 0, 0], "several roots"),
            (nested(65), "more than 64 groups"),
            (nested(100_000), "more than 64 groups"),
        ] {
            let e = check_schema(&footer(&bad)).unwrap_err();
            assert!(e.contains(why), "{e}");
            assert_eq!(Footer::parse(&footer(&bad), 1 << 30, None).unwrap_err(), e);
        }
        let cut = footer(&[1, 0]);
        for end in 0..cut.len() {
            assert!(check_schema(&cut[..end]).is_err(), "{end}");
        }
        // A list of 2^31 elements; a name that is said to be a number.
        assert!(check_schema(&[0x15, 2, 0x19, 0xfc, 0x80, 0x80, 0x80, 0x80, 0x08, 0]).is_err());
        assert!(check_schema(&[0x15, 2, 0x19, 0x1c, 0x45, 1, 0]).is_err());
    }

    #[test]
    fn an_object_is_looked_at_from_its_end() {
        let object = |children: &[u32]| {
            let metadata = footer(children);
            let length = metadata.len() as u32;
            [&b"PAR1"[..], &metadata, &length.to_le_bytes(), b"PAR1"].concat()
        };
        assert_eq!(check_object(&object(&[1, 0])), Ok(()));
        assert!(check_object(&object(&[9, 0])).is_err());
        assert_eq!(check_object(b"PAR1"), Ok(()));
    }

    #[test]
    fn offset_indexes_are_large_enough_for_their_pages() {
        // A list of one page, and the end.
        let one = [0x19, 0x1c, 0x16, 8, 0x15, 8, 0x16, 0, 0, 0];
        assert!(has_its_pages(&one));
        assert!(!has_its_pages(&one[..8]) && !has_its_pages(&[]) && !has_its_pages(&[0x15, 0]));
        assert!(!has_its_pages(&[&[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07][..], &one[2..]].concat()));
    }
}
