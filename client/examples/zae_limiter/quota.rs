//! The quotas of zae-limiter.

use std::time::Duration;

use saphyr::Yaml;
use weirgate::{Every, Limit, LimitMode, QuotaWindow, SessionWindow, Weekday};

/// Returns the text of a quota, or the key that has no counterpart; `None` for a rate.
pub fn text(
    limit: &Yaml<'_>,
    capacity: i64,
    is_soft: bool,
) -> Option<Result<String, &'static str>> {
    let (key, window): (_, fn(&Yaml<'_>) -> Option<QuotaWindow>) =
        match limit.as_mapping_get("reset_schedule") {
            Some(_) => ("reset_schedule", on_calendar),
            None => ("reset_after_seconds", from_first_use),
        };
    let value = limit.as_mapping_get(key)?;
    let mode = if is_soft { LimitMode::Soft } else { LimitMode::Enforced };
    let quota = window(value).and_then(|window| Limit::quota("quota", capacity, window).ok());
    Some(quota.map(|quota| quota.in_mode(mode).text()).ok_or(key))
}

fn from_first_use(seconds: &Yaml<'_>) -> Option<QuotaWindow> {
    let seconds = u64::try_from(seconds.as_integer()?).ok()?;
    let session = SessionWindow::new(Duration::from_secs(seconds)).ok()?;
    Some(session.into())
}

/// Returns the window that begins at each time of cron. Cron skips months that lack the day, so only
/// days of all months are one.
fn on_calendar(rules: &Yaml<'_>) -> Option<QuotaWindow> {
    let [rule] = rules.as_vec()?.as_slice() else {
        return None;
    };
    let fields = rule.as_mapping_get("cron")?.as_str()?;
    let fields: Vec<_> = fields.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else {
        return None;
    };
    let number = |text: &str| text.parse::<u8>().ok();
    let at = |every: Every| Some(every.at(number(hour)?, number(minute)?));
    let on = |every: Every| Some(at(every)?.on_day(number(day).filter(|day| *day <= 28)?));
    let every = match (hour, day, month, weekday) {
        ("*", "*", "*", "*") => Every::hour().at_minute(number(minute)?),
        (_, "*", "*", "*") => at(Every::day())?,
        (_, "*", "*", _) => {
            let days = [
                Weekday::Sunday,
                Weekday::Monday,
                Weekday::Tuesday,
                Weekday::Wednesday,
                Weekday::Thursday,
                Weekday::Friday,
                Weekday::Saturday,
                Weekday::Sunday,
            ];
            at(Every::week())?.on(*days.get(usize::from(number(weekday)?))?)
        }
        (_, _, "*", "*") => on(Every::month())?,
        (_, _, _, "*") => on(Every::year())?.in_month(number(month)?),
        _ => return None,
    };
    let zone = rule.as_mapping_get("tz").and_then(Yaml::as_str);
    let every = every.zone(zone.unwrap_or("UTC")).ok()?;
    every.try_into().ok()
}
