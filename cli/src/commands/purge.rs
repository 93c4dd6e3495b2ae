//! `weirgate purge`.

use clap::Args;
use weirgate::{LiveLeases, PageToken, PurgeReport};

use super::confirm::Destroy;
use super::list::token;
use crate::context::Context;
use crate::failure::{Failure, Outcome};
use crate::stop::Stop;

/// Deletes everything of a namespace.
///
/// Stop its system level a minute before. It reads the whole table, of all namespaces. Run it
/// again some minutes later: until then, the aggregator writes the last usage of deleted
/// buckets. Ctrl-C and SIGTERM end it after a page, with the token that continues it.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weirgate --namespace staging stop --system\n  \
                  weirgate --namespace staging purge --dry-run")]
pub struct Purge {
    /// Deletes shards with leases that have not expired, too
    #[arg(long)]
    discard_leases: bool,
    /// Continues an interrupted purge after this page
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    page: Option<PageToken>,
    #[command(flatten)]
    destroy: Destroy,
}

impl Purge {
    pub async fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let namespace = &context.options().namespace;
        let deed =
            format!("delete all that table {} has of namespace {namespace}", context.place()?);
        self.destroy.confirm(&deed, namespace)?;
        let (limiter, is_dry_run) = (context.limiter().await?, self.destroy.dry_run);
        let leases = match self.discard_leases {
            true => LiveLeases::Discard,
            false => LiveLeases::Refuse,
        };
        let stop = Stop::new()?;
        let output = context.output();
        let mut progress = output.progress();
        let mut sum = PurgeReport { next: self.page.clone(), ..PurgeReport::default() };
        loop {
            let mut purge = limiter.admin().purge_namespace(namespace).leases(leases);
            if is_dry_run {
                purge = purge.dry_run();
            }
            let page = match purge.after(sum.next.clone()).send().await {
                Ok(page) => page,
                Err(error) => {
                    drop(progress);
                    return Err(part(error.into(), &sum, is_dry_run));
                }
            };
            sum = sum.plus(page);
            if sum.next.is_none() {
                break;
            }
            // Between pages, so that the token continues after what is done.
            if stop.is_asked() {
                drop(progress);
                return Err(part(Failure::stopped(), &sum, is_dry_run));
            }
            progress.show(|| format!("{} items read, {} deleted", sum.scanned, sum.deleted()));
        }
        drop(progress);
        output.print(&sum, |sum| text(sum, is_dry_run))?;
        Ok(match sum.leased {
            0 => Outcome::Done,
            _ => Outcome::Incomplete,
        })
    }
}

/// Adds what was done, and how it goes on.
fn part(failure: Failure, sum: &PurgeReport, is_dry_run: bool) -> Failure {
    let Some(next) = &sum.next else {
        return failure;
    };
    let remark = format!("{}\ngo on: --page {next}", text(sum, is_dry_run));
    let done = serde_json::to_value(sum).unwrap_or_default();
    let fields = serde_json::json!({"next": next.to_string(), "done": done});
    failure.with_part(remark, fields)
}

fn text(report: &PurgeReport, is_dry_run: bool) -> String {
    let PurgeReport { scanned, shards, configs, snapshots, audit_events, others, leased, .. } =
        report;
    let deleted = if is_dry_run { "would be deleted" } else { "deleted" };
    let mut text = format!(
        "{scanned} items read; {deleted}: {configs} configurations, {shards} shards, {snapshots} \
         snapshots, {audit_events} audit events, {others} others"
    );
    if *leased > 0 {
        text += &format!(
            "\n{leased} shards hold leases that have not expired, and stay: purge again later, or \
             with --discard-leases"
        );
    }
    text
}
