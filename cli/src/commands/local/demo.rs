//! What `weirgate local --demo` prints.

use std::time::Duration;

use anstyle::{Effects, Style};
use weirgate_local::{Demo, LocalBackend, Work};
use weirgate_shared::docs;

use super::actions::line;
use super::started::Started;
use crate::context::Context;
use crate::text::{Text, one_line};

/// A change of limits is to be seen soon.
pub const CONFIG_TTL: Duration = Duration::from_secs(1);

/// Time between two looks at the traffic.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const BOLD: Style = Style::new().effects(Effects::BOLD);

/// Commands to try, each with what it shows.
const TRY: [(&str, &str); 5] = [
    ("What decides about globex", "weirgate why globex chat"),
    ("The slots of initech", "weirgate leases list initech jobs"),
    ("The largest users of chat", "weirgate usage --resource chat --top requests"),
    (
        "More for globex",
        "weirgate limits set --entity globex --resource chat requests=20/second,burst=20",
    ),
    ("Too much for acme", "weirgate load acme chat requests=1 --rate 20 --for 5s"),
];

/// Returns what stands on the terminal above the traffic.
pub fn text(started: &Started<'_>, demo: &Demo, moved: &str) -> Text {
    let Started { endpoint_url, page_url, table, variables, .. } = started;
    let place = started.place();
    let tenants = demo.tenants().iter();
    let tenants = tenants.map(|tenant| format!("  {:<10}  {}\n", tenant.name(), tenant.traffic()));
    let variables: Vec<_> =
        variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let exports = variables.chunks(2);
    let exports = exports.map(|pair| format!("  export {}\n", pair.join(" ")));
    let text = Text::default()
        .and("Weirgate on this machine, with requests of three tenants. Ctrl-C ends it.\n\n")
        .and("  Live page   ")
        .with(BOLD, page_url)
        .and(format!("{moved}\n  Table       {table}, {place}, at {endpoint_url}\n\n"))
        .and(tenants.collect::<String>())
        .and("\nOpen the page. Then try, in another terminal:\n\n")
        .and(exports.collect::<String>() + "\n");
    let tries = TRY.iter().map(|(what, command)| {
        let what = format!("  {what:<26}  ");
        Text::default().and(what).with(BOLD, *command).and("\n")
    });
    tries
        .fold(text, Text::append)
        .and("\nLimits and programs of your own: ")
        .with(BOLD, docs!("guide/start"))
        .and("\n\n")
}

/// Tells what the tenants were granted and denied, and what fails, for as long as it runs.
pub async fn tell(demo: &mut Demo, backend: &LocalBackend, context: &Context) {
    let (actions, mut told) = (backend.actions(), 0);
    let mut progress = context.output().progress();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let last = actions.after(told);
        told = last.last().map_or(told, |action| action.number);
        let failed = last.iter().filter_map(|action| match &action.work {
            work @ Work::Failed { .. } => Some(line(action, work)),
            _ => None,
        });
        let failed = failed.chain(demo.error().map(|error| format!("a request failed: {error}")));
        for failed in failed.collect::<Vec<_>>() {
            // The dropped one has cleared its line.
            progress = context.output().progress();
            context.output().note(one_line(&failed));
        }
        progress.show(|| summary(demo));
    }
}

/// Returns what each tenant was granted and denied so far.
pub fn summary(demo: &Demo) -> String {
    let tenants: Vec<_> = demo.tenants().iter().map(ToString::to_string).collect();
    tenants.join(" | ")
}
