//! What an acquire takes, answers and costs.

use weirgate_tests as fixtures;

mod acquire;
mod blocking;
mod bypass;
mod coalesce;
mod cold;
mod cost;
mod frozen;
mod items;
mod limits;
mod modes;
mod partial;
mod peek;
mod refused;
mod scope;
mod stale_views;
mod tenants;
mod together;
mod transactions;
