//! Where a filled segment goes.
//!
//! | the disk cache says | a plan reads it | the memory tier has room | placement |
//! |---|---|---|---|
//! | stored | | | on disk |
//! | not worth it, no room | yes | yes | in memory: served until no stream needs it |
//! | not worth it | yes | no | on disk all the same: so it is not fetched twice |
//! | no room | yes | no | nowhere: served once, and fetched again |
//! | not worth it, no room | no | | nowhere |

use crate::disk::policy::Refusal;

/// Where a segment goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// It is on disk already.
    OnDisk,
    /// It stays in memory until no stream needs it.
    InMemory,
    /// On disk, whatever leaves for it.
    OnDiskAnyway,
    /// It is served to those who wait for it, and not kept.
    Nowhere,
}

/// Places a segment that the disk cache stored, or refused. `is_planned`: an announced plan reads it now or
/// next. `tier_has_room` is asked only where it matters.
pub fn place(refused: Option<Refusal>, is_planned: bool, tier_has_room: impl FnOnce() -> bool) -> Placement {
    match refused {
        None => Placement::OnDisk,
        _ if is_planned && tier_has_room() => Placement::InMemory,
        Some(Refusal::NotWorthIt) if is_planned => Placement::OnDiskAnyway,
        Some(_) => Placement::Nowhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_go_where_the_table_says() {
        const STORED: Option<Refusal> = None;
        const NOT_WORTH_IT: Option<Refusal> = Some(Refusal::NotWorthIt);
        const NO_ROOM: Option<Refusal> = Some(Refusal::NoRoom);
        use Placement::{InMemory, Nowhere, OnDisk, OnDiskAnyway};
        let (planned, unplanned, room, full) = (true, false, true, false);
        for (disk, is_planned, has_room, placement) in [
            (STORED, planned, room, OnDisk),
            (STORED, planned, full, OnDisk),
            (STORED, unplanned, full, OnDisk),
            (NOT_WORTH_IT, planned, room, InMemory),
            (NOT_WORTH_IT, planned, full, OnDiskAnyway),
            (NOT_WORTH_IT, unplanned, room, Nowhere),
            (NOT_WORTH_IT, unplanned, full, Nowhere),
            (NO_ROOM, planned, room, InMemory),
            (NO_ROOM, planned, full, Nowhere),
            (NO_ROOM, unplanned, room, Nowhere),
            (NO_ROOM, unplanned, full, Nowhere),
        ] {
            let case = format!("{disk:?}, planned: {is_planned}, room: {has_room}");
            assert_eq!(place(disk, is_planned, || has_room), placement, "{case}");
        }
    }
}
