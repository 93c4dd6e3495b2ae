//! Calls of both services, and their answers.

use tonic::Status;

use super::fixture::*;
use super::kuadrant::{call, commit, reserve};

/// Returns the descriptor that a text of the table means.
fn parsed(text: &str) -> RateLimitDescriptor {
    let (text, limit) = match text.split_once('@') {
        None => (text, None),
        Some((text, limit)) => {
            let (number, unit) = limit.split_once('/').unwrap();
            let unit = match unit {
                "Hour" => envoy_types::pb::envoy::r#type::v3::RateLimitUnit::Hour,
                _ => envoy_types::pb::envoy::r#type::v3::RateLimitUnit::Unknown,
            };
            let limit =
                RateLimitOverride { requests_per_unit: number.parse().unwrap(), unit: unit.into() };
            (text, Some(limit))
        }
    };
    let (entries, amount) = text.split_once('*').unwrap_or((text, ""));
    let entries = entries.split(',').map(|one| one.split_once('=').unwrap());
    let entries: Vec<_> = entries.collect();
    let descriptor = match amount.strip_prefix('-') {
        Some(tokens) => refund(&entries, tokens.parse().unwrap()),
        None if amount.is_empty() => descriptor(&entries),
        None => hits(&entries, amount.parse().unwrap()),
    };
    RateLimitDescriptor { limit, ..descriptor }
}

/// Returns an answer as the table has it.
fn told(answer: Result<RateLimitResponse, Status>) -> String {
    let answer = match answer {
        Ok(answer) => answer,
        Err(status) => return format!("{:?}\n{}", status.code(), status.message()),
    };
    let mut text = format!("{:?}", answer.overall_code());
    for status in &answer.statuses {
        let left = match (status.limit_remaining, &status.current_limit) {
            (u32::MAX, None) => "all".to_owned(),
            (_, None) => "-".to_owned(),
            (left, Some(_)) => left.to_string(),
        };
        text += &format!(" {:?}:{left}", status.code());
    }
    for header in &answer.response_headers_to_add {
        text += &format!("\n{}: {}", header.key, header.value);
    }
    format!("{text}\n{}", String::from_utf8_lossy(&answer.raw_body))
}

/// Returns whether the first line of an answer begins with these words. A code alone stands for any
/// number that is left.
fn begins(answer: &str, words: &str) -> bool {
    let mut found = answer.lines().next().unwrap().split(' ');
    words.split(' ').all(|word| {
        let found = found.next().unwrap_or_default();
        found == word || found.split(':').next() == Some(word)
    })
}

#[tokio::test]
async fn calls_are_answered_as_the_table_says() {
    for part in include_str!("calls.txt").split("\n## ").skip(1) {
        let (name, steps) = part.split_once('\n').unwrap();
        let agent = Agent::new(RULES).await;
        let mut reservation = String::new();
        for step in steps.split("> ").skip(1) {
            let mut lines = step.lines().filter(|line| !line.is_empty());
            let line = lines.next().unwrap();
            let mut words: Vec<_> = line.split(' ').collect();
            let answer = match *words {
                ["skew", ms] => {
                    agent.clock.skew(ms.parse().unwrap());
                    continue;
                }
                ["vendor", entity, resource, seconds] => {
                    let after = std::time::Duration::from_secs(seconds.parse().unwrap());
                    let said = weirgate::VendorReport::new(429).with_retry_after(after);
                    let told = agent.other.report_vendor(entity, resource, &said).await;
                    assert!(told.unwrap().is_some(), "{name}: {line}");
                    continue;
                }
                ["stop", resource] => {
                    let level = weirgate::ConfigLevel::Resource(resource.try_into().unwrap());
                    let _ = agent.other.admin().stop(&level).send().await.unwrap();
                    continue;
                }
                ["writes", ref expected @ ..] => {
                    let found = agent.dynamo.take_operations().remove("UpdateItem");
                    if let Some(expected) = expected.first() {
                        assert_eq!(found, Some(expected.parse().unwrap()), "{name}: {line}");
                    }
                    continue;
                }
                ["left", entity, resource, limit, tokens] => {
                    let left = agent.left(entity, resource, limit).await;
                    assert_eq!(left.to_string(), tokens, "{name}: {line}");
                    continue;
                }
                ["counted", entity, resource, limit, consumed, ref takes @ ..] => {
                    let found = agent.counted(entity, resource, limit);
                    assert_eq!(found.0.to_string(), consumed, "{name}: {line}");
                    for takes in takes {
                        assert_eq!(found.1.to_string(), *takes, "{name}: {line}");
                    }
                    continue;
                }
                ["reserve", amount, seconds] => {
                    let (amount, seconds) = (amount.parse().unwrap(), seconds.parse().unwrap());
                    match reserve(&agent, amount, seconds).await {
                        Err(status) => told(Err(status)),
                        Ok(reserved) => {
                            let code = format!("{:?}", reserved.code());
                            assert_eq!(reserved.reservation_id.is_empty(), code != "Ok");
                            if code == "Ok" {
                                reservation = reserved.reservation_id;
                            }
                            code
                        }
                    }
                }
                ["commit", amount, ref id @ ..] => {
                    let id = id.first().map_or(&*reservation, |id| *id);
                    let released = commit(&agent, id, amount.parse().unwrap()).await;
                    format!("released {}", released.unwrap())
                }
                _ => {
                    let method = match words[0] {
                        "check" => Some("CheckRateLimit"),
                        "report" => Some("Report"),
                        _ => None,
                    };
                    words.drain(..usize::from(method.is_some()));
                    let hits = words[0].strip_prefix('(').map(|text| text.replace(')', ""));
                    words.drain(..usize::from(hits.is_some()));
                    let request = RateLimitRequest {
                        hits_addend: hits.map_or(0, |hits| hits.parse().unwrap()),
                        ..request(words.into_iter().map(parsed))
                    };
                    told(match method {
                        Some(method) => call(&agent, method, request).await,
                        None => agent.call(request).await,
                    })
                }
            };
            let first = lines.next().unwrap();
            assert!(begins(&answer, first), "{name}: {line}: {answer}");
            for has in lines {
                let is_there = match has.strip_prefix('!') {
                    None => answer.contains(has),
                    Some(lacks) => !answer.contains(lacks),
                };
                assert!(is_there, "{name}: {line}: {has:?} of {answer}");
            }
        }
    }
}
