//! The names of the zones that this release knows.

/// The release, and a line for each zone in the database's spelling. A test compares
/// them with the bundled database.
const ZONES: &str = include_str!("zones.txt");
const HEAD: &str = "release ";

/// The release of the IANA time zone database whose zones this release of Weirgate knows, for example
/// `2026f`.
pub const ZONE_DATA: &str = release();

const fn release() -> &'static str {
    let (_, rest) = ZONES.split_at(HEAD.len());
    let mut end = 0;
    while rest.as_bytes()[end] != b'\n' {
        end += 1;
    }
    rest.split_at(end).0
}

pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ZONES.lines().skip(1)
}
