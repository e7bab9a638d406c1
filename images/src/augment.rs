//! What part of an image the model sees: a pure function of (seed, epoch, sample), so the same pixels come
//! whatever thread works on it, on any number of ranks, and after a resume.

use forebay_proto::hash::xxh3_64;

use crate::settings::Augment;

/// Which sample of which epoch of which run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Of the run: with another seed the same sample is varied otherwise.
    pub seed: u64,
    pub epoch: u64,
    /// The sample's number in the dataset.
    pub sample: u64,
}

/// A rectangle of an image, in its pixels, to be resized to the model's square; then mirrored or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    /// Left edge.
    pub left: f64,
    /// Upper edge.
    pub top: f64,
    /// Width, above 0.
    pub width: f64,
    /// Height, above 0.
    pub height: f64,
    /// Left and right swapped.
    pub mirrored: bool,
}

/// Tries to find a rectangle of the size and shape drawn before the middle is taken (as torchvision does).
const TRIES: usize = 10;
/// Shapes of a crop: width / height within these.
const RATIOS: (f64, f64) = (3.0 / 4.0, 4.0 / 3.0);
/// An evaluation sees the middle square, this share of the shorter side: 224 of 256.
const MIDDLE: f64 = 224.0 / 256.0;
/// The largest shift, as a share of the side.
const SHIFT: f64 = 0.125;

impl View {
    /// What the training sees of an image of `width` x `height` pixels, for a model of side `size`.
    pub fn of_training(
        augment: Augment,
        crop_share: f64,
        key: Key,
        (width, height): (u32, u32),
        size: u32,
    ) -> Self {
        if augment == Augment::None {
            return Self::of_evaluation((width, height), size);
        }
        let mut draw = Draw::new(key);
        let (width, height) = (f64::from(width), f64::from(height));
        let whole = Self { left: 0.0, top: 0.0, width, height, mirrored: false };
        let view = match augment {
            Augment::None | Augment::Flip => middle(whole, 1.0),
            Augment::Shift => shifted(middle(whole, 1.0), &mut draw),
            Augment::Crop => cropped(whole, crop_share, &mut draw),
        };
        Self { mirrored: draw.share() < 0.5, ..view }
    }

    /// What an evaluation sees of it: the middle square.
    pub fn of_evaluation((width, height): (u32, u32), size: u32) -> Self {
        // What has the model's size already, as raw pixels of a small dataset do, is seen whole.
        let share = if (width, height) == (size, size) { 1.0 } else { MIDDLE };
        let (width, height) = (f64::from(width), f64::from(height));
        middle(Self { left: 0.0, top: 0.0, width, height, mirrored: false }, share)
    }
}

/// The middle square, this share of the shorter side.
fn middle(whole: View, share: f64) -> View {
    let side = whole.width.min(whole.height) * share;
    centred(whole, side, side)
}

fn centred(whole: View, width: f64, height: f64) -> View {
    let (left, top) = ((whole.width - width) / 2.0, (whole.height - height) / 2.0);
    View { left, top, width, height, ..whole }
}

/// Moved by up to an eighth of the side within the image's own edges, and so as much smaller.
fn shifted(view: View, draw: &mut Draw) -> View {
    let room = view.width * SHIFT;
    let (right, down) = (draw.share() * room, draw.share() * room);
    View {
        left: view.left + right,
        top: view.top + down,
        width: view.width - room,
        height: view.height - room,
        ..view
    }
}

/// A rectangle of random area, shape and place ("Inception crop", Szegedy et al. 2014).
fn cropped(whole: View, least: f64, draw: &mut Draw) -> View {
    let area = whole.width * whole.height;
    for _ in 0..TRIES {
        let target = area * (least + (1.0 - least) * draw.share());
        let ratio = (RATIOS.0.ln() + (RATIOS.1.ln() - RATIOS.0.ln()) * draw.share()).exp();
        let (width, height) = ((target * ratio).sqrt().round(), (target / ratio).sqrt().round());
        if (1.0..=whole.width).contains(&width) && (1.0..=whole.height).contains(&height) {
            let left = (draw.share() * (whole.width - width + 1.0)).floor().min(whole.width - width);
            let top = (draw.share() * (whole.height - height + 1.0)).floor().min(whole.height - height);
            return View { left, top, width, height, ..whole };
        }
    }
    // A strip: the most of it that has an allowed shape.
    let width = whole.width.min(whole.height * RATIOS.1);
    let height = whole.height.min(whole.width / RATIOS.0);
    centred(whole, width, height)
}

/// Random numbers that depend on the key alone: SplitMix64 (Steele, Lea & Flood 2014), started from its hash.
struct Draw(u64);

impl Draw {
    fn new(key: Key) -> Self {
        let mut bytes = [0; 24];
        for (place, value) in bytes.chunks_mut(8).zip([key.seed, key.epoch, key.sample]) {
            place.copy_from_slice(&value.to_le_bytes());
        }
        Self(xxh3_64(&bytes))
    }

    /// From 0 to below 1.
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AUGMENTS: [Augment; 4] = [Augment::Crop, Augment::Shift, Augment::Flip, Augment::None];

    proptest! {
        #[test]
        fn a_view_lies_within_its_image_and_follows_from_the_key(
            width in 1u32..3000,
            height in 1u32..3000,
            seed: u64,
            sample: u64,
            share in 0.01f64..=1.0,
        ) {
            for augment in AUGMENTS {
                let key = Key { seed, epoch: 3, sample };
                let view = View::of_training(augment, share, key, (width, height), 64);
                prop_assert_eq!(view, View::of_training(augment, share, key, (width, height), 64));
                prop_assert!(view.left >= 0.0 && view.top >= 0.0 && view.width > 0.0 && view.height > 0.0);
                prop_assert!(view.left + view.width <= f64::from(width) + 1e-6, "{:?} {:?}", augment, view);
                prop_assert!(view.top + view.height <= f64::from(height) + 1e-6, "{:?} {:?}", augment, view);
            }
        }
    }

    #[test]
    fn each_part_of_the_key_changes_the_view() {
        let key = Key { seed: 1, epoch: 2, sample: 3 };
        let view = |key| View::of_training(Augment::Crop, 0.08, key, (500, 300), 64);
        assert_ne!(view(key), view(Key { seed: 9, ..key }));
        assert_ne!(view(key), view(Key { epoch: 9, ..key }));
        assert_ne!(view(key), view(Key { sample: 9, ..key }));
        let views: Vec<_> = (0..400).map(|sample| view(Key { sample, ..key })).collect();
        let mirrored = views.iter().filter(|view| view.mirrored).count();
        assert!((150..250).contains(&mirrored), "{mirrored}");
        let shares: Vec<_> = views.iter().map(|view| view.width * view.height / 150_000.0).collect();
        assert!(shares.iter().all(|share| (0.07..=1.01).contains(share)));
        assert!(shares.iter().any(|share| *share < 0.2) && shares.iter().any(|share| *share > 0.7));
    }

    #[test]
    fn an_evaluation_sees_the_middle() {
        let view = View::of_evaluation((512, 256), 224);
        assert_eq!((view.left, view.top, view.width, view.height), (144.0, 16.0, 224.0, 224.0));
        let whole = View::of_evaluation((32, 32), 32);
        assert_eq!((whole.left, whole.width, whole.mirrored), (0.0, 32.0, false));
    }
}
