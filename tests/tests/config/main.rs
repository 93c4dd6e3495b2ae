//! Limits that are stored, inherited, loaded from files, and audited.

use weirgate_tests as fixtures;

mod acts;
mod audit;
mod cache;
mod descriptions;
mod functions;
mod hierarchy;
mod hierarchy_races;
mod hung_reads;
mod limit_texts;
mod limits_file;
mod missing_plans;
mod plan_seams;
mod plans;
mod props;
mod quotas;
mod releases;
mod resolve;
mod schema;
mod set;
mod stops;
mod switches;
