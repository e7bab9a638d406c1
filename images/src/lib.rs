//! Images as training takes them: files or raw pixels of a column, decoded, cropped, resized and mirrored.
//!
//! What the training sees of an image follows from the run's seed, the epoch and the sample alone. So
//! `forebay-train` and the Python package, which both decode with this, see the same pixels, on any number of
//! threads and ranks, and after a resume.
//!
//! * [`ImageSettings`]: what a column holds and what it becomes. [`Augment`]: how it is varied.
//! * [`Decoder`]: the threads at work.

mod augment;
mod decode;
mod settings;

pub use decode::{Decoder, Rows, Vary};
pub use settings::{Augment, ImageSettings, ImageSource, Misfit, Raw, SIZE_MAX};
