//! The contents of a schedule's event.

use aws_lambda_events::event::cloudwatch_events::CloudWatchEvent;
use weirgate_shared::EpochMillis;

/// A schedule's event: its id, and when it was due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Id of the event. A schedule delivers at least once, so two runs may have the same.
    pub(crate) id: Option<String>,
    /// Due time of the event, in RFC 3339.
    pub(crate) at: String,
    /// Time from then to the start of the run, in ms.
    pub(crate) late_ms: i64,
}

impl Schedule {
    /// Returns the contents of `event` if it is a schedule's. Another event, such as a manual one,
    /// is no error.
    pub(crate) fn of(event: &str, now: EpochMillis) -> Option<Self> {
        let event: CloudWatchEvent = serde_json::from_str(event).ok()?;
        let is_scheduled = event.source.as_deref() == Some("aws.scheduler");
        let late_ms = now.since(EpochMillis(event.time.timestamp_millis())).0;
        is_scheduled.then(|| Self { id: event.id, at: event.time.to_rfc3339(), late_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedules_event_says_which_it_is_and_how_late() {
        let event = include_str!("../../../events/reconciler-schedule.json");
        let said = Schedule::of(event, EpochMillis(1_767_225_600_000 + 2_500)).unwrap();
        let id = Some("7d8c1f6e-2f4a-4c55-9a63-0b8e5f1d2c3a".to_owned());
        assert_eq!(
            said,
            Schedule { id, at: "2026-01-01T00:00:00+00:00".to_owned(), late_ms: 2_500 }
        );
    }

    #[test]
    fn any_other_event_says_nothing_and_is_no_error() {
        let foreign = r#"{"detail-type": "x", "source": "aws.s3", "resources": [], "time": "2026-01-01T00:00:00Z", "detail": {}}"#;
        for event in ["{}", "null", "", "[1]", r#"{"time": "yesterday"}"#, foreign] {
            assert_eq!(Schedule::of(event, EpochMillis(0)), None, "{event}");
        }
    }
}
