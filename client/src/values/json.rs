//! JSON of spans of time: whole milliseconds, rounded up, so that waiting for them is always
//! enough.

/// A span.
pub(crate) mod ms {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};
    use weirgate_shared::Millis;

    pub(crate) fn serialize<S: Serializer>(
        span: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(Millis::from(*span).0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

/// A span, or `null`.
pub(crate) mod optional_ms {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use weirgate_shared::Millis;

    pub(crate) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(|span| Millis::from(span).0).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Option::<u64>::deserialize(deserializer).map(|ms| ms.map(Duration::from_millis))
    }
}
