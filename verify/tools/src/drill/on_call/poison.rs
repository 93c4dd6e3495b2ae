//! A poison item: a bucket with an attribute that does not belong there.

use super::fault::Fault;
use super::runbook::Section;
use crate::drill::{Drill, ENTITY, NAMESPACE, expect, told};

const RESOURCE: &str = "poisoned";
const PER_MINUTE: i64 = 100_000;

pub(super) struct Poison;

impl<P: Fn(&str)> Fault<P> for Poison {
    const NAME: &'static str = "a bucket's item could not be read";
    const ALARMS: &'static [&'static str] = &["UndecodableRecordsAlarm"];

    async fn inject(&mut self, drill: &Drill<'_, P>) -> Result<(), String> {
        let limit = weirgate::Limit::per_minute("rpm", PER_MINUTE).map_err(told)?;
        drill.configure(RESOURCE, limit).await?;
        drill.take_of(RESOURCE, 3).await?;
        let damage = "aws dynamodb update-item --table-name \"$table\" --key \"$(item \"$pk\" '#STATE')\" \
             --update-expression 'SET b_rpm_cp = :many ADD v :one' --expression-attribute-values \
             '{\":many\":{\"S\":\"many\"},\":one\":{\"N\":\"1\"}}'";
        drill.shell.text(damage, &[("pk", &pk())]).await?;
        let denied = drill.take_of(RESOURCE, 1).await;
        expect(denied.is_err(), || {
            "a caller reads the damaged item".to_owned()
        })
    }

    async fn end(&mut self, drill: &Drill<'_, P>, section: &Section<'_>) -> Result<(), String> {
        let log = section.run("undecodable", &[]).await?;
        let line = log.lines().rev().find(|line| line.contains(RESOURCE));
        let line = line.ok_or_else(|| format!("the log does not name the item: {log}"))?;
        for named in ["undecodable record", "b_rpm_cp", ENTITY, "many"] {
            expect(line.contains(named), || {
                format!("the log does not say {named}: {line}")
            })?;
        }
        let (pk, capacity) = (pk(), (PER_MINUTE * 1000).to_string());
        let correct = [
            ("pk", pk.as_str()),
            ("attribute", "b_rpm_cp"),
            ("number", capacity.as_str()),
        ];
        section.run("correct", &correct).await?;
        drill.take_of(RESOURCE, 1).await?;
        drill.until_counted_of(RESOURCE, 4).await
    }
}

fn pk() -> String {
    format!("{NAMESPACE}/BUCKET#{ENTITY}#{RESOURCE}#0")
}
