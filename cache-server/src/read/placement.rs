//! Where a filled segment goes.
//!
//! | the disk cache says | a plan reads it | the memory tier has room | placement |
//! |---|---|---|---|
//! | stored | | | on disk |
//! | not worth it, no room | yes | yes | in memory: served until no stream needs it |
//! | not worth it | yes | no | on disk all the same: so it is not fetched twice |
//! | no room | yes | no | nowhere: served once, and fetched again |
//! | not worth it, no room | no | | nowhere |

/// What the disk cache did with a segment that it was offered, to be stored if that is worth it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskOffer {
    Stored,
    /// All that would have to leave is needed sooner.
    NotWorthIt,
    /// Everything is being read or pinned, or no directory works.
    NoRoom,
}

/// Where a segment goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// It is on disk already.
    OnDisk,
    /// In the memory tier.
    InMemory,
    /// On disk, whatever leaves for it.
    OnDiskAnyway,
    /// It is served to those who wait for it, and not kept.
    Nowhere,
}

/// Places a segment. `is_planned`: an announced plan reads it now or next. `tier_has_room` is asked only
/// where it matters.
pub fn place(disk: DiskOffer, is_planned: bool, tier_has_room: impl FnOnce() -> bool) -> Placement {
    match disk {
        DiskOffer::Stored => Placement::OnDisk,
        _ if is_planned && tier_has_room() => Placement::InMemory,
        DiskOffer::NotWorthIt if is_planned => Placement::OnDiskAnyway,
        DiskOffer::NotWorthIt | DiskOffer::NoRoom => Placement::Nowhere,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_go_where_the_table_says() {
        use DiskOffer::{NoRoom, NotWorthIt, Stored};
        use Placement::{InMemory, Nowhere, OnDisk, OnDiskAnyway};
        let (planned, unplanned, room, full) = (true, false, true, false);
        for (disk, is_planned, has_room, placement) in [
            (Stored, planned, room, OnDisk),
            (Stored, planned, full, OnDisk),
            (Stored, unplanned, full, OnDisk),
            (NotWorthIt, planned, room, InMemory),
            (NotWorthIt, planned, full, OnDiskAnyway),
            (NotWorthIt, unplanned, room, Nowhere),
            (NotWorthIt, unplanned, full, Nowhere),
            (NoRoom, planned, room, InMemory),
            (NoRoom, planned, full, Nowhere),
            (NoRoom, unplanned, room, Nowhere),
            (NoRoom, unplanned, full, Nowhere),
        ] {
            let case = format!("{disk:?}, planned: {is_planned}, room: {has_room}");
            assert_eq!(place(disk, is_planned, || has_room), placement, "{case}");
        }
    }
}
