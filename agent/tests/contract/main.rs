//! The contract of the agent (`clients/contract`), on the crate itself and over HTTP.
//!
//! # Layout
//!
//! - `scenario`: the scenarios, their steps, and what an answer must say
//! - `on_crate`: the crate `weirgate` on a table in memory, with virtual time
//! - `on_http`: the real binary on an embedded DynamoDB

#[path = "../agent/fixtures.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the binary, which use all of it"
)]
mod fixtures;
mod on_crate;
mod on_http;
mod scenario;

use on_crate::OnCrate;
use on_http::OnHttp;
use scenario::{Database, ScenarioFile, files};

/// Of a database that nothing serves.
const NO_DATABASE: &str = "http://127.0.0.1:1";

#[tokio::test(start_paused = true)]
async fn the_crate_keeps_the_contract() {
    for file in files() {
        for scenario in &file.scenarios {
            let is_up = file.database == Database::Available;
            let mut subject = OnCrate::new(is_up).await;
            scenario.run(&file, &mut subject, "crate").await;
        }
    }
}

#[tokio::test]
async fn the_agent_keeps_the_contract_over_http() {
    let database = std::thread::spawn(fixtures::database).join().unwrap();
    let mut available = OnHttp::new(database);
    let mut unavailable = OnHttp::new(NO_DATABASE.to_owned());
    for file in files() {
        for scenario in &file.scenarios {
            let subject = match file.database {
                Database::Available => &mut available,
                Database::Unavailable => &mut unavailable,
            };
            scenario.run(&file, subject, "http").await;
        }
    }
}

#[test]
fn every_scenario_ends_with_what_it_expects_and_has_a_name_of_its_own() {
    let mut names = vec![];
    for ScenarioFile { scenarios, .. } in files() {
        for scenario in scenarios {
            assert!(scenario.expectations() > 0, "{}", scenario.name);
            assert!(!names.contains(&scenario.name), "{}", scenario.name);
            names.push(scenario.name);
        }
    }
    assert!(names.len() >= 30, "{} scenarios", names.len());
}
