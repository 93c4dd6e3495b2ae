//! What `docs/operations.md` is read on: the alarms hear what the functions say.

use std::time::Duration;

use lambda_runtime::Context;
use lambda_runtime::tracing::subscriber::util::SubscriberInitExt;
use serde_json::{Value, json};
use weirgate_reconciler::{Config, Deadline, invoke, reconcile};
use weirgate_shared::{EpochMillis, Millis};
use weirgate_testkit::leased::{NOW, full, holding, key, limits, store};
use weirgate_testkit::template::{properties, template};
use weirgate_testkit::{Dynamo, Lines};

/// AWS documents no pause between attempts, so a number of them is no time.
#[test]
fn only_age_ends_the_retries_of_a_batch() {
    let mapping = properties("Aggregator")["Events"]["Stream"]["Properties"].take();
    assert_eq!(mapping["MaximumRetryAttempts"], -1);
    assert_eq!(
        mapping["MaximumRecordAgeInSeconds"]["Ref"],
        "StreamMaxAgeSeconds"
    );
    let age = template()["Parameters"]["StreamMaxAgeSeconds"]["Default"].take();
    let page = include_str!("../../docs/operations.md");
    assert!(page.contains(&format!(
        "--maximum-retry-attempts -1 --maximum-record-age-in-seconds {age} "
    )));
    assert!(page.contains("`StreamMaxAgeSeconds` old. Nothing else ends the retries"));
    // Lambda discards every record that is older, also one that was never tried. So no less than
    // the stream keeps.
    assert_eq!(age, 86_400);
}
