//! Where a command writes its answer, and how.

use crate::failure::Failure;
use std::io::Write;

/// Standard output, or a test's buffer.
pub(crate) type Out<'a> = &'a mut (dyn Write + Send);

/// Writes a value as JSON, for programs.
pub(crate) fn write_json(out: Out<'_>, value: &impl serde::Serialize) -> Result<(), Failure> {
    serde_json::to_writer_pretty(&mut *out, value).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}
