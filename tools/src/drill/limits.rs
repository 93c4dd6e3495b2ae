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

    /// What the page's command shows of a limit: `cp`, `ra`, `rp`.
    async fn shown(&self, level: &str, limit: &str) -> Result<[String; 3], String> {
        let said = self
            .shell
            .block(
                "limits",
                &[("level", level), ("audit", "prod/AUDIT##RESOURCE#none")],
            )
            .await?;
        let item = serde_json::Deserializer::from_str(&said)
            .into_iter::<serde_json::Value>()
            .next();
        let item = item.ok_or("no limits are shown")?.map_err(told)?;
        let limit = &item["Item"]["limits"]["M"][limit]["M"];
        Ok(["cp", "ra", "rp"]
            .map(|field| limit[field]["N"].as_str().unwrap_or_default().to_owned()))
    }

    pub(super) async fn limits(&mut self) -> Result<(), String> {
        let shown = self.shell.block("limits", &[]).await?;
        expect(
            shown.contains("100000000") && shown.contains("set_config"),
            || format!("the limits are {shown}"),
        )?;
        self.shell
            .block("set-limit", &[("burst", "5000"), ("rate", "7000")])
            .await?;
        let shown = self.shown("prod/RESOURCE#gpt-4", "rpm").await?;
        expect(shown == ["5000", "7000", "60000"], || {
            format!("a burst of 5 and 7 a minute are {shown:?}")
        })?;
        let decision = self.decide(RESOURCE, "rpm", 6).await?;
        expect(matches!(decision, Decision::NeverFits(_)), || {
            format!("6 of 5 tokens: {decision:?}")
        })?;
        self.shell.block("set-limit", &[]).await?;
        self.shell.block("disable", &[]).await?;
        let decision = self.decide(RESOURCE, "rpm", 1).await?;
        expect(matches!(decision, Decision::Disabled(_)), || {
            format!("disabled, and yet {decision:?}")
        })?;
        self.shell
            .block("disable", &[("status", "enforced")])
            .await?;
        self.take(1).await?;
        self.shell.block("balance", &[("milli", "-500000")]).await?;
        let decision = self.decide(RESOURCE, "rpm", 1).await?;
        expect(matches!(decision, Decision::Denied(_)), || {
            format!("drained, and yet {decision:?}")
        })?;
        self.shell.block("balance", &[("milli", "600000")]).await?;
        self.take(1).await?;
        self.until_counted(self.taken).await?;
        self.say("a limit was lowered, raised, disabled and enforced; a bucket drained and filled; usage stays exact");
        Ok(())
    }

    /// Runs a block that must refuse what it is asked.
    async fn refused(&self, block: &str, variables: &[(&str, &str)]) -> Result<(), String> {
        match self.shell.block(block, variables).await {
            Err(refused) if refused.contains("ConditionalCheckFailed") => Ok(()),
            other => Err(format!(
                "{block} with {variables:?} is not refused: {other:?}"
            )),
        }
    }

    pub(super) async fn slots(&mut self) -> Result<(), String> {
        let (level, slots) = (("level", "prod/RESOURCE#seats"), ("limit", "slots"));
        self.configure(SEATS, Limit::concurrent("slots", 2).map_err(told)?)
            .await?;
        let Decision::Granted(held) = self.decide(SEATS, "slots", 2).await? else {
            return Err("2 of 2 slots were refused".to_owned());
        };
        self.refused("set-limit", &[level, slots]).await?;
        self.refused("set-slots", &[("limit", "rpm")]).await?;
        self.refused("balance", &[("pk", "prod/BUCKET#openai#seats#0"), slots])
            .await?;
        self.shell
            .block("set-slots", &[level, slots, ("milli", "1000")])
            .await?;
        let shown = self.shown(level.1, "slots").await?;
        expect(shown == ["1000", "0", "1"], || {
            format!("one slot is {shown:?}")
        })?;
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
            .block("set-slots", &[level, slots, ("milli", "2000")])
            .await?;
        let other = self.decide(SEATS, "slots", 1).await?;
        expect(other.is_granted(), || {
            format!("one slot of 2 is free, and yet {other:?}")
        })?;
        self.say("slots were lowered while they were held, and raised; none was made or lost");
        Ok(())
    }
}
