//! Windows of quotas and schedules as people read them.

use weirgate::{EpochMillis, LimitStatus, Schedule, WindowCode};

/// Returns when the window of a quota ends, on the clock of its zone: `resets on 15 Dec 09:00
/// (Berlin)`. For a session that has not begun, its length; `None` for other limits.
#[must_use]
pub fn resets(status: &LimitStatus) -> Option<String> {
    let code = status.window?;
    let end = status.window_end.and_then(|end| weirgate_shared::calendar::shown(code, end));
    Some(match (end, code.session()) {
        (Some(end), _) => format!("resets on {end}"),
        (None, Some(_)) => format!("{code} from the first use"),
        (None, None) => code.to_string(),
    })
}

/// Returns the scale of a schedule's rule in force, and its next boundary on the clock of the zone:
/// `2/1 until 15 Dec 18:00 (Berlin)`.
#[must_use]
pub(super) fn scale(schedule: &Schedule, now: EpochMillis) -> Option<String> {
    let active = weirgate_shared::calendar::active_scale(schedule, now)?;
    let until = weirgate_shared::calendar::shown_in(schedule.zone_name(), active.until)?;
    Some(format!("{} until {until}", active.scale))
}

/// Returns the window of a quota as `limits set` takes it, with the amount: `quota:10000/month`.
pub(super) fn text(status: &LimitStatus, code: WindowCode) -> String {
    let kind = if code.session().is_some() { "session" } else { "quota" };
    format!("{kind}:{}/{code}", status.capacity)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weirgate::{EntityId, EpochMillis, Limit, LimitMode, MilliTokens, QuotaWindow, Resource};

    use super::*;

    fn status(window: Option<WindowCode>, window_end: Option<i64>) -> LimitStatus {
        LimitStatus {
            entity: EntityId::new("user-1").unwrap(),
            resource: Resource::new("gpt-4").unwrap(),
            limit: "tpm".to_owned(),
            mode: LimitMode::Enforced,
            capacity: MilliTokens::from_tokens(10_000),
            refill_amount: MilliTokens::ZERO,
            refill_period: Duration::ZERO,
            available: MilliTokens::from_tokens(6_120),
            requested: MilliTokens::ZERO,
            is_requested: false,
            retry_after: Some(Duration::ZERO),
            paused_for: None,
            window,
            window_end: window_end.map(EpochMillis),
            resets_in: None,
        }
    }

    #[test]
    fn a_quota_says_when_it_resets_on_the_clock_of_its_zone() {
        let code = |text: &str| text.parse::<QuotaWindow>().map(QuotaWindow::code).ok();
        let month = code("month,day=15,at=09:00,tz=Europe/Berlin");
        for (window, end, expected) in [
            (None, None, None),
            (month, Some(1_797_321_600_000), Some("resets on 15 Dec 09:00 (Berlin)")),
            (code("5h"), Some(1_797_321_600_000), Some("resets on 15 Dec 08:00 (UTC)")),
            (code("5h"), None, Some("5h from the first use")),
            (Some(WindowCode(-1)), None, Some("unknown window (-1)")),
        ] {
            let status = status(window, end);
            assert_eq!(resets(&status).as_deref(), expected);
        }
    }

    #[test]
    fn a_scale_is_shown_with_the_next_boundary() {
        let schedule: Schedule = "0 8 * * 1-5 for 10h scale 2/1 tz Europe/Berlin".parse().unwrap();
        for (hour, expected) in
            [(7, "2/1 until 15 Dec 18:00 (Berlin)"), (17, "1/1 until 16 Dec 08:00 (Berlin)")]
        {
            // 15 December 2026, a Tuesday.
            let now = EpochMillis(1_797_292_800_000 + hour * 3_600_000);
            assert_eq!(scale(&schedule, now).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_quota_is_named_as_the_command_line_takes_it() {
        for written in ["quota:10000/month,day=15,tz=Europe/Berlin", "session:10000/5h"] {
            let limit: Limit = format!("tpm={written}").parse().unwrap();
            let code = limit.rule().window_code().unwrap();
            assert_eq!(text(&status(Some(code), None), code), written);
        }
    }
}
