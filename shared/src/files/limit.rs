//! A limit in a file: its text, or a map.

use std::collections::HashMap;

use super::{FileError, Node, Source};
use crate::{
    Class, Every, Limit, LimitMode, QuotaWindow, Schedule, ScheduleRule, SessionWindow, WindowError,
};

const TAKES: &str = "a text such as 600/minute,burst=800, 20 or quota:10000/month, or a map with one of \
                     per_second, per_minute, per_hour, per_day, concurrent, or capacity with refill_amount \
                     and refill_period_ms, or quota with every or session; beside it burst, mode, \
                     classes and schedule, and for every day, month, at and tz";
const CLASSES: &str = "a map of classes such as {batch: {at_least: 10%, leaves: 30%}}";
const RULES: &str =
    "a list of rules such as {cron: \"0 8 * * 1-5\", for: 10h, scale: 2/1, tz: Europe/Berlin}";

/// Reads the limit with this name: `600/minute,burst=800,mode=shadow`, or a map such as
/// `{per_minute: 600}`.
///
/// # Errors
/// [`FileError`] if the node is none.
pub fn read_limit(source: &Source<'_>, name: &str, node: &Node<'_>) -> Result<Limit, FileError> {
    if name.contains('=') {
        let message = "a comma between { and } ends a value: put the whole limit into quotes";
        return Err(source.error(node, message));
    }
    let limit = match node.is_map() {
        true => return read_map(source, name, node),
        false => source.text(node).map(|text| Limit::parse(name, &text)),
    };
    limit
        .map_err(|_| source.refuse(node, TAKES))?
        .map_err(|error| source.error(node, &error.to_string()))
}

fn read_map(source: &Source<'_>, name: &str, node: &Node<'_>) -> Result<Limit, FileError> {
    let (mut rules, mut numbers, mut mode) = (vec![], HashMap::new(), LimitMode::default());
    let (mut window, mut window_nodes) = (vec![], HashMap::new());
    let (mut schedule, mut classes) = (None, vec![]);
    for (key, part) in source.entries(node, TAKES)? {
        match key.as_str() {
            "per_second" | "per_minute" | "per_hour" | "per_day" | "concurrent" => {
                rules.push((key, source.integer(&part)?));
            }
            "capacity" | "refill_amount" | "refill_period_ms" | "burst" | "quota" => {
                numbers.insert(key, source.integer(&part)?);
            }
            "every" | "session" | "day" | "month" | "at" | "tz" => {
                window.push((key.clone(), source.text(&part)?));
                window_nodes.insert(key, part);
            }
            "mode" => {
                let parsed = LimitMode::parse(&source.text(&part)?);
                mode = parsed.ok_or_else(|| source.refuse(&part, LimitMode::WORDS))?;
            }
            "classes" => classes = read_classes(source, &part)?,
            "schedule" => schedule = Some((read_schedule(source, &part)?, part)),
            _ => return Err(source.unknown(node, &key, TAKES)),
        }
    }
    let number = |name: &str| numbers.get(name).copied();
    let custom = ["capacity", "refill_amount", "refill_period_ms"].map(number);
    let quota = read_window(&window).map_err(|error| {
        let node = window_nodes.get(error.wrong_field()).unwrap_or(node);
        source.error(node, &error.to_string())
    })?;
    let has_quota = !window.is_empty() || number("quota").is_some();
    let limit = match (&rules[..], custom, number("quota").zip(quota)) {
        ([], [None, None, None], Some((tokens, window))) => Limit::quota(name, tokens, window),
        ([(rule, number)], [None, None, None], _) if !has_quota => match rule.as_str() {
            "per_second" => Limit::per_second(name, *number),
            "per_minute" => Limit::per_minute(name, *number),
            "per_hour" => Limit::per_hour(name, *number),
            "per_day" => Limit::per_day(name, *number),
            _ => Limit::concurrent(name, *number),
        },
        ([], [Some(capacity), Some(amount), Some(period)], _) if !has_quota => {
            Limit::custom(name, capacity, amount, period)
        }
        _ => return Err(source.error(node, &format!("takes {TAKES}"))),
    };
    let limit = limit.and_then(|limit| match number("burst") {
        Some(burst) => limit.with_burst(burst),
        None => Ok(limit),
    });
    let limit = limit.map_err(|error| source.error(node, &error.to_string()))?;
    let limit = limit.in_mode(mode).with_classes(classes);
    let limit = limit.map_err(|error| source.error(node, &error.to_string()))?;
    match schedule {
        Some((schedule, node)) => {
            let limit = limit.with_schedule(schedule);
            limit.map_err(|error| source.error(&node, &error.to_string()))
        }
        None => Ok(limit),
    }
}

/// Reads the classes of a limit, by their names.
fn read_classes(source: &Source<'_>, node: &Node<'_>) -> Result<Vec<Class>, FileError> {
    let mut classes = vec![];
    for (name, class) in source.entries(node, CLASSES)? {
        let (mut at_least, mut leaves) = (None, 0);
        for (key, part) in source.entries(&class, CLASSES)? {
            let text = source.text(&part)?;
            let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
            let percent =
                percent.ok_or_else(|| source.refuse(&part, "a percentage such as 10%"))?;
            match key.as_str() {
                "at_least" => at_least = Some(percent),
                "leaves" => leaves = percent,
                _ => return Err(source.unknown(&class, &key, CLASSES)),
            }
        }
        let at_least = at_least.ok_or_else(|| source.refuse(&class, CLASSES))?;
        let built = Class::new(&name, at_least).and_then(|class| class.leaving(leaves));
        classes.push(built.map_err(|error| source.error(&class, &error.to_string()))?);
    }
    Ok(classes)
}

/// Reads the schedule of a limit. An error has the place of the field that is wrong.
fn read_schedule(source: &Source<'_>, node: &Node<'_>) -> Result<Schedule, FileError> {
    let refuse = |node: &Node<'_>, error: WindowError| source.error(node, &error.to_string());
    let mut rules = vec![];
    for rule in source.items(node, RULES)? {
        let mut fields = HashMap::new();
        for (key, part) in source.entries(&rule, RULES)? {
            if !["cron", "for", "scale", "tz"].contains(&key.as_str()) {
                return Err(source.unknown(&rule, &key, RULES));
            }
            fields.insert(key, (source.text(&part)?, part));
        }
        let text = |name: &str| fields.get(name).map(|(text, _)| text.as_str());
        let (Some(cron), Some(length), Some(scale)) = (text("cron"), text("for"), text("scale"))
        else {
            return Err(source.refuse(&rule, RULES));
        };
        let parsed = ScheduleRule::of(cron, length, scale, text("tz")).map_err(|error| {
            // The fields of a cron are named `minute of cron` and so on.
            let name = error.wrong_field().rsplit(' ').next().unwrap_or_default();
            refuse(fields.get(name).map_or(&rule, |(_, node)| node), error)
        })?;
        rules.push(parsed);
    }
    Schedule::new(rules).map_err(|error| refuse(node, error))
}

/// Reads the window of a quota from its fields; `None` if they name neither a period nor a session.
fn read_window(fields: &[(String, String)]) -> Result<Option<QuotaWindow>, WindowError> {
    let field = |name: &str| {
        let found = fields.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value)
    };
    let misplaced = |field, value: &str, takes| WindowError::Field {
        field,
        value: value.to_owned(),
        takes,
        remedy: "remove it",
    };
    match (field("every"), field("session")) {
        (Some(every), None) => {
            let mut others = fields.iter().filter(|(field, _)| field != "every");
            let every = others
                .try_fold(Every::parse(every)?, |every, (field, value)| every.set(field, value))?;
            every.try_into().map(Some)
        }
        (None, Some(session)) => {
            for name in ["day", "month", "at", "tz"] {
                if let Some(value) = field(name) {
                    return Err(misplaced(name, value, "left out of a session"));
                }
            }
            let session = session.parse::<SessionWindow>()?;
            Ok(Some(QuotaWindow::Session(session)))
        }
        (Some(_), Some(session)) => Err(misplaced("session", session, "left out beside every")),
        (None, None) => Ok(None),
    }
}
