//! The table is throttled: it has a maximum of writes that callers exceed.

use weirgate::{Decision, Limit, RateLimiter, Table};

use super::fault::Fault;
use super::metric::{Names, Point};
use super::runbook::Section;
use super::throttle::Throttle;
use crate::demo::connected;
use crate::drill::{Drill, ENTITY, NAMESPACE, expect, told};

const RESOURCES: [&str; 4] = ["capped-1", "capped-2", "capped-3", "capped-4"];

pub(super) struct Capped {
    throttle: Throttle,
}

impl Capped {
    pub(super) async fn new(endpoint: &str) -> Result<Self, String> {
        let throttle = Throttle::to(endpoint).await.map_err(told)?;
        Ok(Self { throttle })
    }

    /// Lets the table have the maximum that it is described with.
    async fn follow<P: Fn(&str)>(&self, drill: &Drill<'_, P>) -> Result<i64, String> {
        let maximum = "aws dynamodb describe-table --table-name \"$table\" --output text \
             --query Table.OnDemandThroughput.MaxWriteRequestUnits";
        let said = drill.shell.text(maximum, &[]).await?;
        let maximum = said.trim().parse().unwrap_or(-1);
        self.throttle.keep(maximum);
        Ok(maximum)
    }

    /// Takes of several buckets at once. Returns the number of callers without a decision.
    async fn drive<P: Fn(&str)>(&self, drill: &Drill<'_, P>) -> Result<usize, String> {
        let table = Table::new(connected(&self.throttle.endpoint).await, drill.table.name());
        let limiter = RateLimiter::builder("drill")
            .table(table)
            .namespace(NAMESPACE)
            .owner("drill")
            .build()
            .await
            .map_err(told)?;
        let take = async |resource: &str| {
            let decision = limiter.acquire(ENTITY, resource).take("rpm", 1).send();
            matches!(decision.await, Ok(Decision::Granted(_)))
        };
        let [one, two, three, four] = RESOURCES;
        let granted = tokio::join!(take(one), take(two), take(three), take(four));
        let granted = [granted.0, granted.1, granted.2, granted.3];
        Ok(granted.into_iter().filter(|granted| !granted).count())
    }
}

impl<P: Fn(&str)> Fault<P> for Capped {
    const NAME: &'static str = "the table had a maximum of one write a second";
    const ALARMS: &'static [&'static str] = &["TableThrottledAlarm"];

    async fn inject(&mut self, drill: &Drill<'_, P>) -> Result<(), String> {
        for resource in RESOURCES {
            let limit = Limit::per_minute("rpm", 100_000).map_err(told)?;
            drill.configure(resource, limit).await?;
        }
        expect(self.drive(drill).await? == 0, || {
            "callers are refused without a maximum".to_owned()
        })?;
        let cap = "aws dynamodb update-table --table-name \"$table\" --on-demand-throughput MaxWriteRequestUnits=1";
        drill.shell.text(cap, &[]).await?;
        let maximum = self.follow(drill).await?;
        expect(maximum == 1, || format!("the table's maximum is {maximum}"))?;
        self.drive(drill).await?;
        // The metric that DynamoDB has beside those of the alarm, and the emulator has not.
        let put = "aws cloudwatch put-metric-data --namespace AWS/DynamoDB --value 1 \
             --metric-name WriteMaxOnDemandThroughputThrottleEvents --dimensions \"TableName=$table\"";
        drill.shell.text(put, &[]).await.map(drop)
    }

    fn shown(&mut self, names: &Names) -> Vec<Point> {
        let table = names.0.get("Table").map_or("", String::as_str);
        let point = |operation: &String| {
            let of = [("TableName", table), ("Operation", operation.as_str())];
            let all = [("TableName", table)];
            [
                Point::new("AWS/DynamoDB", "ThrottledRequests", &of, 1),
                Point::new("AWS/DynamoDB", "WriteThrottleEvents", &all, 1),
            ]
        };
        self.throttle.refused().iter().flat_map(point).collect()
    }

    async fn end(&mut self, drill: &Drill<'_, P>, section: &Section<'_>) -> Result<(), String> {
        let why = section.run("throttled", &[]).await?;
        expect(why.contains("WriteMaxOnDemandThroughput\ttable\t"), || {
            format!("the table is said to be throttled by {why}")
        })?;
        section.run("uncap", &[]).await?;
        let maximum = self.follow(drill).await?;
        expect(maximum < 0, || format!("the table's maximum is {maximum}"))?;
        let refused = self.drive(drill).await?;
        expect(refused == 0, || {
            format!("without a maximum {refused} callers are refused")
        })
    }
}
