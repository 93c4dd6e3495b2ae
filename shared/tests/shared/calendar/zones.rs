//! The boundaries of windows are those of an independent calendar: `zones.txt`, which `zones.py`
//! writes.

use std::path::Path;

use jiff::civil::date;
use jiff::tz::TimeZoneDatabase;
use weirgate_shared::calendar::{ZONE_DATA, Zone};
use weirgate_shared::{CalendarWindow, EpochMillis, ZoneName};

use super::{Boundaries, HOUR, MINUTE, window};

const TABLE: &str = include_str!("zones.txt");
const YEARS: std::ops::Range<i16> = 2015..2035;

/// Returns the boundaries from one instant to before another.
fn boundaries(window: &CalendarWindow, from: i64, to: i64) -> impl Iterator<Item = i64> {
    let ends = |at: &EpochMillis| Some(window.end_after(*at));
    let ends = std::iter::successors(Some(window.end_after(EpochMillis(from - 1))), ends);
    ends.map(|end| end.0).take_while(move |end| *end < to)
}

fn hash(boundaries: impl Iterator<Item = i64>) -> u32 {
    let hash = boundaries.fold(0_i64, |hash, boundary| {
        (hash.wrapping_mul(1_000_003) ^ (boundary / 1000)) & 0xffff_ffff
    });
    u32::try_from(hash).unwrap()
}

fn new_year(year: i16) -> i64 {
    let first = date(year, 1, 1).at(0, 0, 0, 0);
    jiff::tz::TimeZone::UTC.to_timestamp(first).unwrap().as_millisecond()
}

/// The names that `shared` knows are those of the bundled database: `WRITTEN=1 cargo test --workspace
/// --test shared zones` lists them again in `shared/src/quota/zones.txt`.
#[test]
fn shared_knows_the_names_of_the_bundled_database() {
    let mut page = format!("release {ZONE_DATA}\n");
    for name in TimeZoneDatabase::bundled().available() {
        page += &format!("{name}\n");
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/quota/zones.txt");
    if std::env::var_os("WRITTEN").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    let known = std::fs::read_to_string(&file).unwrap();
    assert!(known == page, "{} is not current: run this with WRITTEN=1", file.display());
    // As it was when this was built.
    assert_eq!(weirgate_shared::ZONE_DATA, ZONE_DATA);
    for name in ZoneName::all() {
        let zone = Zone::of(name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(zone.name(), name.as_str());
    }
}

#[test]
fn the_table_is_of_the_release_of_the_zones() {
    let release = TABLE.lines().next().unwrap();
    let remedy = "write the table again: zones.py says how";
    assert_eq!(release, format!("release {ZONE_DATA}"), "{remedy}");
}

#[test]
fn boundaries_are_those_of_an_independent_calendar() {
    let (mut zone, mut zones, mut hashes, mut changes) = ("", 0, 0, 0);
    for line in TABLE.lines().skip(1) {
        let fields: Vec<_> = line.split(' ').collect();
        match fields[..] {
            ["zone", name] => {
                (zone, zones) = (name, zones + 1);
            }
            ["window", text, ref expected @ ..] => {
                let window = window(&format!("{text},tz={zone}"));
                assert_eq!(expected.len(), YEARS.len());
                for (year, expected) in YEARS.zip(expected) {
                    let hash = hash(boundaries(&window, new_year(year), new_year(year + 1)));
                    assert_eq!(format!("{hash:08x}"), *expected, "{window} in {year}");
                    hashes += 1;
                }
            }
            ["change", at, ref minutes @ ..] => {
                let at = at.parse::<i64>().unwrap() * 1000;
                for (text, expected) in ["hour", "hour,at=:30"].into_iter().zip(minutes) {
                    let window = window(&format!("{text},tz={zone}"));
                    let near = boundaries(&window, at - 4 * HOUR, at + 4 * HOUR + 1);
                    let near: Vec<_> = near.map(|b| ((b - at) / MINUTE).to_string()).collect();
                    assert_eq!(near.join(","), *expected, "{window} near {at}");
                    changes += 1;
                }
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!((zones, hashes), (40, 40 * 6 * 20));
    assert!(changes > 1_500, "{changes}");
}
