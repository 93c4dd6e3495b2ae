//! The contract of the agent (`clients/contract`), on the crate itself and over HTTP.
//!
//! # Layout
//!
//! - `scenario`: the scenarios, their steps, and what an answer must say
//! - `on_crate`: the crate `weirgate` on a table in memory, with virtual time
//! - `on_http`: the real binary on an embedded DynamoDB
//! - `mutants`: the crate with one fault each, which scenarios must find

#[path = "../agent/fixtures.rs"]
#[allow(
    dead_code,
    reason = "shared with the tests of the binary, which use all of it"
)]
mod fixtures;
mod mutants;
mod on_crate;
mod on_http;
mod scenario;

use mutants::{FAULTS, Mutant};
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
            let kept = scenario.run(&file, &mut subject, "crate").await;
            kept.unwrap_or_else(|broken| panic!("{broken}"));
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
            let kept = scenario.run(&file, subject, "http").await;
            kept.unwrap_or_else(|broken| panic!("{broken}"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_fault_breaks_a_scenario_and_every_scenario_finds_a_fault() {
    let mut unbroken: Vec<_> = FAULTS.iter().map(|fault| fault.name).collect();
    let mut blind = vec![];
    for file in files() {
        for scenario in &file.scenarios {
            let mut is_blind = true;
            for fault in &FAULTS {
                let is_up = file.database == Database::Available;
                let mut subject = Mutant::new(OnCrate::new(is_up).await, fault);
                if scenario.run(&file, &mut subject, "mutant").await.is_err() {
                    unbroken.retain(|name| *name != fault.name);
                    is_blind = false;
                }
            }
            blind.extend(is_blind.then(|| scenario.name.clone()));
        }
    }
    assert_eq!(unbroken, [""; 0], "no scenario finds these faults");
    assert_eq!(blind, [""; 0], "these scenarios find no fault");
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
