//! The contract of the agent (`clients/contract`), on the crate itself and over HTTP.
//!
//! # Layout
//!
//! - `scenario`: the scenarios, their steps, and what an answer must say
//! - `on_crate`: the crate `weirgate` on a table in memory, with virtual time

mod on_crate;
mod scenario;

use on_crate::OnCrate;
use scenario::{Database, ScenarioFile, files};

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
