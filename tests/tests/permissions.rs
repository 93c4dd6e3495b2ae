//! What the README says that callers need is what they ask of DynamoDB, and no more.

mod fleet;
mod stored;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use fleet::Fleet;
use stored::{child, entity, resource, rpm, take};
use weirgate::{AuditOf, Config, ConfigsOf, Level};

/// The actions and indexes in the row of the README's table that begins with this.
fn documented(who: &str) -> BTreeSet<String> {
    let readme = include_str!("../../README.md");
    let row = readme.lines().find(|line| line.starts_with(&format!("| {who} |"))).expect("the README has the row");
    row.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// What is asked for from now on: actions, those of a transaction's parts, and the indexes that are queried.
fn asked(fleet: &Fleet) -> Arc<Mutex<BTreeSet<String>>> {
    let asked = Arc::new(Mutex::new(BTreeSet::new()));
    let note = |asked: &Arc<Mutex<BTreeSet<String>>>, what: &str| {
        asked.lock().unwrap().insert(what.to_owned());
    };
    let (writes, parts, reads) = (Arc::clone(&asked), Arc::clone(&asked), Arc::clone(&asked));
    fleet.dynamo.fail_when(move |_| {
        note(&writes, "UpdateItem");
        None
    });
    fleet.dynamo.fail_transactions(move |request| {
        for kind in
            request["TransactItems"].as_array().unwrap().iter().flat_map(|part| part.as_object().unwrap().keys())
        {
            note(&parts, if kind == "ConditionCheck" { "ConditionCheckItem" } else { kind });
        }
        None
    });
    fleet.dynamo.fail_reads(move |operation, request| {
        note(&reads, operation);
        if let Some(index) = request["IndexName"].as_str() {
            note(&reads, index);
        }
        None
    });
    asked
}

fn take_asked(asked: &Mutex<BTreeSet<String>>) -> BTreeSet<String> {
    let asked = std::mem::take(&mut *asked.lock().unwrap());
    let name = |name: String| if ["Update", "Delete"].contains(&&*name) { format!("{name}Item") } else { name };
    asked.into_iter().map(name).collect()
}

#[tokio::test(start_paused = true)]
async fn the_readme_says_what_callers_need() {
    let fleet = Fleet::new().await;
    let (admin, limiter, asked) = (fleet.limiter().await, fleet.limiter().await, asked(&fleet));
    let own = Level::EntityResource(entity("e-1"), resource("gpt-4"));
    admin.check().await.unwrap();
    for rate in [5, 6] {
        admin.set_config(&own, &Config::of([rpm(rate)])).await.unwrap();
    }
    admin.set_entity(&child("e-1", "team")).await.unwrap();
    assert!(admin.config(&own).await.unwrap().is_some() && admin.entity(&entity("e-1")).await.unwrap().is_some());
    for of in [ConfigsOf::Entity(entity("e-1")), ConfigsOf::Resource(resource("gpt-4")), ConfigsOf::Entities] {
        let _ = admin.configs(&of, None).await.unwrap();
    }
    assert_eq!(admin.children(&entity("team"), None).await.unwrap().items, [entity("e-1")]);
    assert_eq!(admin.audit(&AuditOf::Entity(entity("e-1")), None).await.unwrap().items.len(), 3);
    admin.delete_entity(&entity("e-1")).await.unwrap();
    assert_eq!(take_asked(&asked), documented("changes limits and entities"));

    assert!(take(&limiter, 1).await.unwrap().is_granted());
    assert!(take(&limiter, 1).await.unwrap().is_granted());
    assert_eq!(take_asked(&asked), documented("acquires"));
}
