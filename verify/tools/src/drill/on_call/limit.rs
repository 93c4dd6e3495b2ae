//! A deployment with the wrong limit. No alarm of the stack can know it: callers see that they are
//! denied.

use weirgate::RateLimiter;

use super::fault::Fault;
use super::runbook::Section;
use crate::drill::{Drill, ENTITY, expect, told};

const RESOURCE: &str = "orders";
/// What a caller takes in the exercise.
const TAKES: u64 = 30;
const METRICS: &str = include_str!("../../../../../docs/guide/metrics.md");

#[derive(Default)]
pub(super) struct WrongLimit;

/// Returns what follows `key` in the alert of the guide.
fn alert(key: &str) -> Result<&'static str, String> {
    let (_, rule) = METRICS
        .split_once("- alert: WeirgateDenials\n")
        .ok_or("docs/guide/metrics.md has no alert WeirgateDenials")?;
    let found = rule.lines().find_map(|line| line.trim().strip_prefix(key));
    found.ok_or_else(|| format!("the alert WeirgateDenials has no {key}"))
}

impl WrongLimit {
    /// Deploys limits from a file, as a pipeline does.
    async fn deploy<P: Fn(&str)>(
        drill: &Drill<'_, P>,
        by: &str,
        per_minute: u32,
    ) -> Result<(), String> {
        let deploy = "printf 'weirgate: 1\\nresources:\\n  %s:\\n    limits:\\n      rpm: {per_minute: %s}\\n' \
               \"$resource\" \"$per_minute\" > limits.yaml
             weirgate limits plan limits.yaml --out limits.plan > planned
             weirgate limits apply limits.plan";
        let per_minute = per_minute.to_string();
        let with = [
            ("WEIRGATE_PRINCIPAL", by),
            ("resource", RESOURCE),
            ("per_minute", per_minute.as_str()),
        ];
        drill.shell.text(deploy, &with).await.map(drop)
    }

    /// Drives a caller. Returns whether the guide's alert rings on its metrics.
    async fn rings<P: Fn(&str)>(drill: &Drill<'_, P>) -> Result<bool, String> {
        let limiter = drill.limiter().await?;
        for _ in 0..TAKES {
            let take = limiter.acquire(ENTITY, RESOURCE).take("rpm", 1);
            let _ = take.send().await.map_err(told)?;
        }
        is_above(&limiter)
    }
}

/// The alert's expression over a limiter's counters, which are its metrics.
fn is_above(limiter: &RateLimiter) -> Result<bool, String> {
    let expression = alert("expr: ")?;
    let of = "sum(rate(weirgate_denied_total[5m])) / (sum(rate(weirgate_granted_total[5m])) + sum(rate(weirgate_denied_total[5m]))) > ";
    let threshold = expression
        .strip_prefix(of)
        .and_then(|part| part.strip_prefix("0."))
        .filter(|part| part.len() == 1)
        .and_then(|tenths| tenths.parse::<u64>().ok())
        .ok_or_else(|| format!("{expression:?} must be {of:?} and a number of tenths"))?;
    let stats = limiter.stats();
    let decided = stats.granted + stats.denied;
    expect(decided == TAKES, || {
        format!("of {TAKES} acquires {decided} are counted")
    })?;
    Ok(stats.denied * 10 > threshold * decided)
}

impl<P: Fn(&str)> Fault<P> for WrongLimit {
    const NAME: &'static str = "limits were deployed with 6 instead of 600 a minute";
    const ALARMS: &'static [&'static str] = &[];

    async fn inject(&mut self, drill: &Drill<'_, P>) -> Result<(), String> {
        Self::deploy(drill, "deploy-480", 600).await?;
        expect(!Self::rings(drill).await?, || {
            "callers are denied before the deployment".to_owned()
        })?;
        let keep = "cp limits.yaml good.yaml";
        drill.shell.text(keep, &[]).await?;
        Self::deploy(drill, "deploy-481", 6).await?;
        expect(Self::rings(drill).await?, || {
            "the alert does not ring".to_owned()
        })
    }

    fn link(&self) -> Result<String, String> {
        alert("runbook: ").map(str::to_owned)
    }

    async fn end(&mut self, drill: &Drill<'_, P>, section: &Section<'_>) -> Result<(), String> {
        let of = [("entity", ENTITY), ("resource", RESOURCE)];
        let force = section.run("in-force", &of).await?;
        expect(force.contains("6 per 1 min"), || {
            format!("the limits in force are {force}")
        })?;
        let changes = section.run("changes", &of).await?;
        let last = changes.lines().find(|line| line.contains("deploy-481"));
        let last = last.ok_or_else(|| format!("the deployment is not named: {changes}"))?;
        expect(last.contains("before") && last.contains("after"), || {
            format!("the change is not shown: {last}")
        })?;
        let file = ("good", "good.yaml");
        let difference = section.run("compare", &[file]).await?;
        expect(difference.contains(RESOURCE), || {
            format!("the difference is {difference}")
        })?;
        section.run("undo", &[file]).await?;
        section.run("refill", &of).await?;
        expect(!Self::rings(drill).await?, || {
            "callers are still denied".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drill::page::{PAGE, section_blocks};

    #[test]
    fn the_alert_on_denials_links_a_section_with_commands() {
        let (_, section) = alert("runbook: ").unwrap().split_once('#').unwrap();
        assert!(section_blocks(PAGE, section).contains(&"undo"));
    }
}
