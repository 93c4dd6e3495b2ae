//! What the deployed stack shows at one point of the exercise: the values that CloudWatch's metrics
//! would have.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use weirgate_testkit::emf;

use super::metric::{Names, Point};
use crate::demo::now;
use crate::drill::proxy::Proxy;
use crate::drill::{Drill, expect, told};

/// A resource whose take shows how old a record is when the aggregator has it.
pub(super) const PROBE: &str = "probe";
/// The schedule's minute, and some seconds for the emulator's clock. Runs are looked for in the last
/// such time, because other observations take seconds.
pub(super) const SCHEDULE_MS: i64 = 75_000;

/// Every answer is a line: a name, a tab, and JSON. A record of the probe is waited for only while
/// its mapping is enabled.
const ASK: &str = r#"say() { printf '%s\t' "$1"; shift; "$@" --output json | tr -d '\n'; echo; }
aggregated() { aws logs filter-log-events --log-group-name "/aws/lambda/$aggregator" "$@"; }
expired=$(aws lambda list-event-source-mappings --function-name "$archiver" --output text --query 'EventSourceMappings[0].UUID')
for of in "Aggregator $mapping" "Archiver $expired"; do
  say "mapping ${of% *}" aws lambda get-event-source-mapping --uuid "${of#* }" --query '[UUID,State]'
  say "failed ${of% *}" aws s3api list-objects-v2 --bucket "$failures" --prefix "aws/lambda/${of#* }/" --query 'length(Contents||`[]`)'
done
if [ "$(aws lambda get-event-source-mapping --uuid "$mapping" --query State --output text)" = Enabled ]; then
  for try in $(seq 60); do
    at=$(aggregated --start-time "$since" --filter-pattern '"batch done"' --query 'events[0].timestamp' --output text)
    [ "$at" = None ] || break
  done
  printf 'probe\t%s\n' "${at/None/null}"
fi
say "lines Aggregator" aggregated --start-time "$phase" --query 'events[].message'
say "lines Reconciler" aws logs filter-log-events --log-group-name "/aws/lambda/$reconciler" --start-time "$phase" --query 'events[].message'
say letters aws sqs get-queue-attributes --queue-url "$letters" --attribute-names ApproximateNumberOfMessages \
  --query 'Attributes.ApproximateNumberOfMessages'
say lambda aws cloudwatch get-metric-data --metric-data-queries "$queries" --start-time "$from" --end-time "$to" \
  --query 'MetricDataResults[].[Id,Values]'
since_text=$(date -d "@$run_from" '+%F %T')
printf 'scheduled\t%s\n' "$(awk -v from="$since_text" -v run="Lambda $reconciler: dispatched" \
  '$0 >= from && index($0, run) { runs++ } END { print runs + 0 }' ministack.log)"
say runs aws cloudwatch get-metric-data --metric-data-queries "$queries" --start-time "$run_from" --end-time "$to" \
  --query 'MetricDataResults[].[Id,Values]'"#;

/// Metrics of a function, each with the statistic that joins the values of a minute.
const LAMBDA: [(&str, &str); 4] = [
    ("Invocations", "Sum"),
    ("Errors", "Sum"),
    ("Throttles", "Sum"),
    ("Duration", "Maximum"),
];
const FUNCTIONS: [&str; 3] = ["Aggregator", "Archiver", "Reconciler"];

/// Failure objects that are there, by function.
pub(super) type Failed = BTreeMap<String, i64>;

/// Observes the stack: what it has shown since `phase`, and what a take shows now. `failed` has the
/// failure objects of the last observation, and gets those of this one.
pub(super) async fn observe<P: Fn(&str)>(
    drill: &Drill<'_, P>,
    names: &Names,
    failed: &mut Failed,
    phase: i64,
) -> Result<Vec<Point>, String> {
    let since = now().0;
    drill.take_of(PROBE, 1).await?;
    let proxy = Proxy::to(&drill.endpoint).await.map_err(told)?;
    let seconds = |ms: i64| format!("{}.{:03}", ms.div_euclid(1000), ms.rem_euclid(1000));
    let variables = [
        ("since", since.to_string()),
        ("phase", phase.to_string()),
        ("from", seconds(phase)),
        ("run_from", seconds(since - SCHEDULE_MS)),
        ("to", seconds(since + 3_600_000)),
        ("queries", queries(names).to_string()),
        ("AWS_ENDPOINT_URL", proxy.endpoint.clone()),
    ];
    let variables: Vec<_> = variables
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    let said = drill.shell.text(ASK, &variables).await?;
    let mut points = vec![];
    for line in said.lines() {
        let (name, text) = line
            .split_once('\t')
            .ok_or_else(|| format!("no answer: {line:?}"))?;
        let answer = serde_json::from_str(text).unwrap_or(Value::Null);
        let (what, of) = name.split_once(' ').unwrap_or((name, ""));
        match what {
            "mapping" => points.extend(polled(&answer)),
            "failed" => points.extend(delivered(names, of, &answer, failed)),
            "probe" => points.push(lag(names, &answer, since)?),
            "lines" => points.extend(logged(&answer)),
            "scheduled" => points.extend(scheduled(names, &answer)),
            "letters" => points.push(letters(names, &answer)?),
            "lambda" => points.extend(of_lambda(names, &answer, false)),
            "runs" => points.extend(of_lambda(names, &answer, true)),
            other => return Err(format!("no question was {other:?}")),
        }
    }
    Ok(points)
}

fn function<'a>(names: &'a Names, name: &str) -> &'a str {
    names.0.get(name).map_or("", String::as_str)
}

/// A poll of a mapping that is enabled is a sample; a disabled one has none.
fn polled(answer: &Value) -> Option<Point> {
    let uuid = answer[0].as_str()?;
    let of = [("EventSourceMappingUUID", uuid)];
    (answer[1] == "Enabled").then(|| Point::new("AWS/Lambda", "PolledEventCount", &of, 0))
}

/// Objects that have come to the failure bucket since the last observation.
fn delivered(names: &Names, of: &str, answer: &Value, failed: &mut Failed) -> Option<Point> {
    let now = answer.as_i64()?;
    let before = failed.insert(of.to_owned(), now).unwrap_or(now);
    let mapping = match of {
        "Aggregator" => "AggregatorStream",
        _ => "ArchiverExpired",
    };
    let of = [("EventSourceMappingUUID", function(names, mapping))];
    let metric = "OnFailureDestinationDeliveredEventCount";
    (now > before).then(|| Point::new("AWS/Lambda", metric, &of, now - before))
}

/// The age of the probe's record when the aggregator was done with it.
fn lag(names: &Names, answer: &Value, since: i64) -> Result<Point, String> {
    let done = answer
        .as_i64()
        .ok_or("the mapping is enabled, and the aggregator does not run")?;
    let of = [("FunctionName", function(names, "Aggregator"))];
    Ok(Point::new(
        "AWS/Lambda",
        "IteratorAge",
        &of,
        (done - since).max(0),
    ))
}

fn logged(answer: &Value) -> Vec<Point> {
    let lines = answer.as_array().into_iter().flatten();
    let json = |line: &Value| {
        let line = line.as_str().unwrap_or_default();
        // Lambda's own lines are no JSON here, and make no metrics.
        serde_json::from_str::<Value>(line.get(line.find('{')?..)?).ok()
    };
    let points = lines.filter_map(json).flat_map(|line| emf::points(&line));
    points.map(Point::from).collect()
}

/// Runs that the schedule has started. The emulator has a metric of calls by its API alone, and its
/// own log has the schedule's.
fn scheduled(names: &Names, answer: &Value) -> Option<Point> {
    let runs = answer.as_i64().filter(|runs| *runs > 0)?;
    let of = [("FunctionName", function(names, "Reconciler"))];
    Some(Point::new("AWS/Lambda", "Invocations", &of, runs))
}

fn letters(names: &Names, answer: &Value) -> Result<Point, String> {
    let count = answer.as_str().and_then(|count| count.parse().ok());
    let queue = names.text(&json!({"Fn::GetAtt": "DeadLetters.QueueName"}));
    let (Some(count), Some(queue)) = (count, queue) else {
        return Err(format!("the queue's depth is {answer}"));
    };
    let of = [("QueueName", queue.as_str())];
    Ok(Point::new(
        "AWS/SQS",
        "ApproximateNumberOfMessagesVisible",
        &of,
        count,
    ))
}

/// Asks for every metric of [`LAMBDA`] of every function.
fn queries(names: &Names) -> Value {
    let mut queries = vec![];
    for function in FUNCTIONS {
        for (metric, stat) in LAMBDA {
            let of = [json!({"Name": "FunctionName", "Value": names.0.get(function)})];
            let of = json!({"Namespace": "AWS/Lambda", "MetricName": metric, "Dimensions": of});
            queries.push(json!({
                "Id": format!("{}_{metric}", function.to_lowercase()),
                "MetricStat": {"Metric": of, "Period": 60, "Stat": stat},
            }));
        }
    }
    queries.into()
}

/// The values of the functions' metrics: of calls alone, or of all other metrics.
fn of_lambda(names: &Names, answer: &Value, are_calls: bool) -> Vec<Point> {
    let mut points = vec![];
    for result in answer.as_array().into_iter().flatten() {
        for name in FUNCTIONS {
            for (metric, _) in LAMBDA {
                let id = format!("{}_{metric}", name.to_lowercase());
                if result[0] != *id || (metric == "Invocations") != are_calls {
                    continue;
                }
                let of = [("FunctionName", function(names, name))];
                let values = result[1].as_array().into_iter().flatten();
                let value = |value: &Value| format!("{:.0}", value.as_f64()?).parse().ok();
                let point = |value| Point::new("AWS/Lambda", metric, &of, value);
                points.extend(values.filter_map(value).map(point));
            }
        }
    }
    points
}

impl<P: Fn(&str)> Drill<'_, P> {
    /// Returns the names of the stack's resources, and the stack's own.
    pub(super) async fn names(&self) -> Result<Names, String> {
        let list = "aws cloudformation describe-stack-resources --stack-name \"$stack\" --output text \
             --query 'StackResources[].[LogicalResourceId,PhysicalResourceId]'; printf 'AWS::StackName\\t%s\\n' \"$stack\"";
        let said = self.shell.text(list, &[]).await?;
        let pairs = said.lines().filter_map(|line| line.split_once('\t'));
        let names = Names(
            pairs
                .map(|(name, id)| (name.to_owned(), id.to_owned()))
                .collect(),
        );
        expect(names.0.contains_key("AggregatorStream"), || {
            format!("the stack has no mapping: {said}")
        })?;
        Ok(names)
    }
}
