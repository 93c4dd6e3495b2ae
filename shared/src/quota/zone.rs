//! Names of time zones.

use std::fmt;
use std::sync::LazyLock;

use super::error::WindowError;
use super::release::names;

/// Hashes of all names in rising order, with their names.
static BY_HASH: LazyLock<Vec<(u32, ZoneName)>> = LazyLock::new(|| {
    let mut zones: Vec<_> = names().map(|name| (fnv1a(name), ZoneName(name))).collect();
    zones.sort_unstable_by_key(|(hash, _)| *hash);
    zones
});

/// The name of a zone of the IANA time zone database, in its spelling.
///
/// An alias keeps its own name, because a later release may turn the alias into a zone:
/// `Asia/Calcutta` is not `Asia/Kolkata`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneName(&'static str);

impl ZoneName {
    /// UTC, the default.
    pub const UTC: Self = Self("UTC");

    /// Returns the zone with a name, in any case of its letters.
    ///
    /// # Errors
    /// [`WindowError::UnknownZone`] for a name that the zone data of this release does not have.
    pub fn new(name: &str) -> Result<Self, WindowError> {
        let known = names().find(|known| known.eq_ignore_ascii_case(name));
        known.map(Self).ok_or_else(|| WindowError::UnknownZone { name: name.to_owned() })
    }

    /// Returns the name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        self.0
    }

    /// Returns the city or region as people read it: the last part of the name, with spaces.
    #[must_use]
    pub fn city(self) -> String {
        let last = self.0.rsplit('/').next().unwrap_or(self.0);
        last.replace('_', " ")
    }

    /// Returns all zones.
    pub fn all() -> impl Iterator<Item = Self> {
        names().map(Self)
    }

    /// Returns the hash that stands for the name in a code.
    pub(super) fn hash(self) -> u32 {
        fnv1a(self.0)
    }

    /// Returns the zone with a hash.
    pub(super) fn of_hash(hash: u32) -> Option<Self> {
        let at = BY_HASH.binary_search_by_key(&hash, |(hash, _)| *hash);
        at.ok().and_then(|at| Some(BY_HASH.get(at)?.1))
    }
}

impl Default for ZoneName {
    fn default() -> Self {
        Self::UTC
    }
}

impl fmt::Debug for ZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for ZoneName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Returns a hash that no release changes: 32-bit FNV-1a.
pub(crate) fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::super::release::ZONE_DATA;
    use super::*;

    #[test]
    fn a_zone_is_found_in_any_case_and_by_its_hash() {
        for (name, spelled) in [
            ("Europe/Berlin", "Europe/Berlin"),
            ("eUROPE/berlin", "Europe/Berlin"),
            ("utc", "UTC"),
            ("asia/calcutta", "Asia/Calcutta"),
        ] {
            let zone = ZoneName::new(name).unwrap();
            assert_eq!(zone.as_str(), spelled);
            assert_eq!(ZoneName::of_hash(zone.hash()), Some(zone));
        }
        assert_eq!(ZoneName::new("UTC"), Ok(ZoneName::UTC));
        assert_eq!(ZoneName::new("America/New_York").unwrap().city(), "New York");
        assert_eq!(ZoneName::of_hash(1), None);
    }

    #[test]
    fn no_two_zones_have_the_same_hash() {
        assert!(BY_HASH.len() > 400, "{}", BY_HASH.len());
        for pair in BY_HASH.windows(2) {
            assert!(pair[0].0 < pair[1].0, "{pair:?}");
        }
    }

    #[test]
    fn an_unknown_zone_is_refused_with_the_release_of_the_data() {
        for name in [
            "Europe/Berln",
            "Mars/Base",
            "",
            "release 2026f",
            "Etc/Unknown",
            "EST5EDT4",
            "+02:00",
            "../Berlin",
            "posixrules",
        ] {
            let error = ZoneName::new(name).unwrap_err();
            let expected = WindowError::UnknownZone { name: name.to_owned() };
            assert_eq!(error, expected);
            let message = format!("whose release here is {ZONE_DATA}, got {name:?}; write for");
            assert!(error.to_string().contains(&message), "{error}");
        }
    }
}
