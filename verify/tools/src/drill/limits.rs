//! Limits are wrong, and are set manually.

use std::time::Duration;

use weirgate::{Decision, Limit};

use super::{Drill, ENTITY, RESOURCE, expect, told};

/// A resource with slots.
const SEATS: &str = "seats";

impl<P: Fn(&str)> Drill<'_, P> {
    async fn decide(&self, resource: &str, limit: &str, tokens: i64) -> Result<Decision, String> {
        let limiter = self.limiter().await?;
        let request = limiter.acquire(ENTITY, resource).take(limit, tokens);
        request
            .lease(Duration::from_secs(3600))
            .send()
            .await
            .map_err(told)
    }

    /// What the page's command shows of a level.
    async fn shown(&self, level: &str) -> Result<String, String> {
        self.shell
            .block("limits", &[("level", level), ("audit", level)])
            .await
    }

    pub(super) async fn limits(&mut self) -> Result<(), String> {
        let shown = self.shown("--resource gpt-4").await?;
        expect(
            shown.contains("100000 per 1 min") && shown.contains("drill"),
            || format!("the limits are {shown}"),
        )?;
        let lower = [("limit", "rpm=7/minute,burst=5")];
        let changed = self.shell.block("set-limit", &lower).await?;
        expect(changed.contains("7 per 1 min"), || {
            format!("a burst of 5 and 7 a minute change {changed}")
        })?;
        let decision = self.decide(RESOURCE, "rpm", 6).await?;
        expect(matches!(decision, Decision::NeverFits(_)), || {
            format!("6 of 5 tokens: {decision:?}")
        })?;
        self.shell.block("set-limit", &[]).await?;
        self.shell.block("stop", &[]).await?;
        let decision = self.decide(RESOURCE, "rpm", 1).await?;
        expect(matches!(decision, Decision::Disabled(_)), || {
            format!("stopped, and yet {decision:?}")
        })?;
        self.shell.block("stop", &[("switch", "start")]).await?;
        self.take(1).await?;
        self.shell.block("balance", &[]).await?;
        let decision = self.decide(RESOURCE, "rpm", 100).await?;
        expect(matches!(decision, Decision::Denied(_)), || {
            format!("drained, and yet {decision:?}")
        })?;
        self.shell.block("balance", &[("edit", "reset")]).await?;
        let decision = self.decide(RESOURCE, "rpm", 500).await?;
        expect(decision.is_granted(), || {
            format!("full, and yet {decision:?}")
        })?;
        self.taken += 1;
        self.until_counted(self.taken).await?;
        self.say("a limit was lowered, raised, stopped and started; a bucket drained and filled; usage stays exact");
        Ok(())
    }

    /// Runs a block that must refuse what it is asked.
    async fn refused(&self, block: &str, variables: &[(&str, &str)]) -> Result<(), String> {
        match self.shell.block(block, variables).await {
            Err(refused) if refused.contains("error: ") => Ok(()),
            other => Err(format!(
                "{block} with {variables:?} is not refused: {other:?}"
            )),
        }
    }

    pub(super) async fn slots(&mut self) -> Result<(), String> {
        let level = ("level", "--resource seats");
        self.configure(SEATS, Limit::concurrent("slots", 2).map_err(told)?)
            .await?;
        let Decision::Granted(held) = self.decide(SEATS, "slots", 2).await? else {
            return Err("2 of 2 slots were refused".to_owned());
        };
        self.refused("balance", &[("resource", SEATS), ("limits", "slots")])
            .await?;
        self.shell
            .block("set-limit", &[level, ("limit", "slots=1")])
            .await?;
        let shown = self.shown(level.1).await?;
        expect(shown.contains("1 slots"), || format!("one slot is {shown}"))?;
        let decision = self.decide(SEATS, "slots", 1).await?;
        expect(matches!(decision, Decision::Denied(_)), || {
            format!("2 slots of 1 are held, and yet {decision:?}")
        })?;
        let _ = held.release().await.map_err(told)?;
        let one = self.decide(SEATS, "slots", 1).await?;
        expect(one.is_granted(), || {
            format!("one slot is free, and yet {one:?}")
        })?;
        let other = self.decide(SEATS, "slots", 1).await?;
        expect(matches!(other, Decision::Denied(_)), || {
            format!("the only slot is held, and yet {other:?}")
        })?;
        self.shell
            .block("set-limit", &[level, ("limit", "slots=2")])
            .await?;
        let other = self.decide(SEATS, "slots", 1).await?;
        expect(other.is_granted(), || {
            format!("one slot of 2 is free, and yet {other:?}")
        })?;
        self.say("slots were lowered while they were held, and raised; none was made or lost");
        Ok(())
    }
}
